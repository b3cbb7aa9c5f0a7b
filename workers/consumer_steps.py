"""Steps of Celery's consumer: it waits for Redis, and tells the runtime when it is connected."""

from __future__ import annotations

from typing import Any

from celery import Celery, bootsteps
from celery.worker.consumer import connection, tasks

from dflashq.config import load
from dflashq.core.errors import DflashqError
from dflashq.ledger.server import check_anew
from workers import runtime
from workers.service_wait import PASSWORD_S, refuse_start, wait_out


class AwaitStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Waits before each connection of the consumer, the first and later ones, for Redis.

    A consumer writes as it connects. Celery itself would try again several times a second.
    """

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        super().__init__(parent, **kwargs)
        self._settings, self._served = load(), False

    def start(self, parent: Any) -> None:
        """Block until Redis takes a write; one that waiting cannot mend ends the worker."""
        owner = runtime.current()
        if owner is not None:
            owner.consumer_connected(False)
        # A worker with finished work waits for as long as it takes: an exit would lose that work.
        has_work = self._served or owner is not None
        try:
            wait_out(
                lambda: check_anew(self._settings),
                "the consumer",
                password_s=None if has_work else PASSWORD_S,
            )
        except DflashqError as exc:
            refuse_start(exc)
        self._served = True


class ConnectedStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Runs once the consumer is connected and subscribed."""

    requires = (tasks.Tasks,)

    def start(self, parent: Any) -> None:
        """Tell the runtime that hints reach this worker. Does not block."""
        owner = runtime.current()
        if owner is not None:
            owner.consumer_connected(True)


def install_consumer_steps(app: Celery) -> None:
    """Put the steps into the consumer. Safe to repeat."""
    if AwaitStep not in connection.Connection.requires:
        connection.Connection.requires = (*connection.Connection.requires, AwaitStep)
    app.steps["consumer"].add(AwaitStep)
    app.steps["consumer"].add(ConnectedStep)
