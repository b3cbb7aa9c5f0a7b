"""A hint as Celery's worker handles it: it was gone from the queue when it was popped."""

from __future__ import annotations

from celery.worker.request import Request


class HintRequest(Request):  # type: ignore[misc]
    """A request without an acknowledgement, since its queue is consumed with `no_ack`.

    Celery acknowledges all the same as the task begins. After a lost connection that is a call on a
    channel that is closed, and its AttributeError ended the worker.
    """

    def acknowledge(self) -> None:
        """Nothing is left to acknowledge. Safe to repeat."""
        self.acknowledged = True

    def reject(self, requeue: bool = False) -> None:
        """Drop it: the sweep publishes a hint for every batch that is still pending."""
        self.acknowledged = True
