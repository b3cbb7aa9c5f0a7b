"""Hints: Celery messages that name a batch. They are counted, not tracked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import redis
from celery import Celery
from kombu.exceptions import KombuError

from dflashq.config import Settings
from dflashq.core.stage_spec import GENERATE, StageSpec
from dflashq.ledger.connection import (
    PRIORITY_STEPS,
    RETRIES,
    SEPARATOR,
    address,
    broker_options,
    connect,
    translated,
)
from dflashq.ledger.refusal import Need

URGENT, NORMAL = 0, 6
# Kombu alone would try for six seconds, in a thread that has other work.
_SHORT_RETRY = {"max_retries": RETRIES, "interval_start": 0.1, "interval_step": 0.1}


class Hints:
    """Publishes hints and counts those that wait; safe from many threads.

    The worker's app is not imported: a hint is sent by the name of the task.
    Every method blocks on Redis and raises LedgerError; LedgerUnreachableError: try again.
    """

    def __init__(self, settings: Settings) -> None:
        self._address = address(settings)
        self._redis = connect(settings)
        self._app = Celery("dflashq-hints", broker=settings.broker_url(), set_as_current=False)
        self._app.conf.update(
            broker_transport_options=broker_options() | _SHORT_RETRY,
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
        spec: StageSpec = GENERATE,
        urgent: bool = False,
    ) -> None:
        """One message a batch; recovered batches are urgent and overtake the others."""
        with self._translated(), self._app.producer_pool.acquire(block=True) as producer:
            for batch in batches:
                self._app.send_task(
                    spec.task,
                    args=[run, batch],
                    queue=queue,
                    priority=URGENT if urgent else NORMAL,
                    producer=producer,
                    retry=False,
                )

    def waiting(self, queue: str) -> int:
        """How many hints lie in a queue, of all priorities."""
        names = [queue + (f"{SEPARATOR}{step}" if step else "") for step in PRIORITY_STEPS]
        with translated(self._address, f"counting the hints in {queue}"):
            pipe = self._redis.pipeline(transaction=False)
            for name in names:
                pipe.llen(name)
            return sum(pipe.execute())

    @contextmanager
    def _translated(self) -> Iterator[None]:
        remedy = "the batches stay in the ledger's outbox and the next sweep hints them"
        with translated(self._address, "publishing hints", Need.ROOM, remedy=remedy):
            try:
                yield
            except (KombuError, OSError) as exc:
                # Kombu wraps what the client raised, or tells in its own words that it is cut off.
                if isinstance(exc.__cause__, redis.RedisError):
                    raise exc.__cause__ from exc
                raise redis.ConnectionError(str(exc)) from exc
