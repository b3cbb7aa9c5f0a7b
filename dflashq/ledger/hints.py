"""Hints: Celery messages that name a batch. They are counted, not tracked."""

from __future__ import annotations

from celery import Celery
from kombu.exceptions import OperationalError

from dflashq.config import Settings
from dflashq.core import keys
from dflashq.core.errors import LedgerUnreachableError
from dflashq.ledger.connection import (
    PRIORITY_STEPS,
    SEPARATOR,
    address,
    broker_options,
    connect,
    translated,
)

URGENT, NORMAL = 0, 6


class Hints:
    """Publishes hints and counts those that wait; safe from many threads.

    The worker's app is not imported: a hint is sent by the name of the task.
    Every method blocks on Redis and raises LedgerUnreachableError.
    """

    def __init__(self, settings: Settings) -> None:
        self._address = address(settings)
        self._redis = connect(settings)
        self._app = Celery("dflashq-hints", broker=settings.broker_url(), set_as_current=False)
        self._app.conf.update(
            broker_transport_options=broker_options(),
            task_serializer="json",
            accept_content=["json"],
            task_ignore_result=True,
            task_default_priority=NORMAL,
        )

    def publish(
        self,
        queue: str,
        run: str,
        batches: list[str],
        *,
        urgent: bool = False,
        task: str = keys.GENERATE_TASK,
    ) -> None:
        """One message a batch; recovered batches are urgent and overtake the others."""
        try:
            with self._app.producer_pool.acquire(block=True) as producer:
                for batch in batches:
                    self._app.send_task(
                        task,
                        args=[run, batch],
                        queue=queue,
                        priority=URGENT if urgent else NORMAL,
                        producer=producer,
                        retry=False,
                    )
        except OperationalError as exc:
            raise self._unreachable(exc) from exc

    def waiting(self, queue: str) -> int:
        """How many hints lie in a queue, of all priorities."""
        names = [queue + (f"{SEPARATOR}{step}" if step else "") for step in PRIORITY_STEPS]
        with translated(self._address, f"counting the hints in {queue}"):
            pipe = self._redis.pipeline(transaction=False)
            for name in names:
                pipe.llen(name)
            return sum(pipe.execute())

    def _unreachable(self, exc: Exception) -> LedgerUnreachableError:
        return LedgerUnreachableError(
            f"Redis at {self._address} took no hints ({exc}); the batches stay in the ledger's "
            "outbox and the next sweep hints them."
        )
