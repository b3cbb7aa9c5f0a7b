"""A hint as Celery's worker handles it: nothing is acknowledged, it left the queue when popped."""

from __future__ import annotations

from celery.worker.request import Request


class HintRequest(Request):  # type: ignore[misc]
    """A request without an acknowledgement, since its queue is consumed with `no_ack`.

    Celery acknowledges all the same as the task begins. After a lost connection it did so on a
    closed channel, and the AttributeError ended the worker.
    """

    def acknowledge(self) -> None:
        """Do nothing: the queue does not wait for it. Safe to repeat."""
        self.acknowledged = True

    def reject(self, requeue: bool = False) -> None:
        """Drop it: the sweep publishes a hint for every batch that is still pending."""
        self.acknowledged = True
