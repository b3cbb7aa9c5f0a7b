"""Logging in one format, and what happens when the worker is told to stop."""

from __future__ import annotations

import logging
import signal
from typing import Any

from celery import signals
from celery.worker import state as worker_state

from dflashq.system.threads import install_excepthook
from workers import log_setup, runtime


def install() -> None:
    """Connect our handlers to Celery's signals. Safe to repeat."""
    signals.setup_logging.connect(_log, weak=False, dispatch_uid="dflashq-log")
    signals.worker_shutting_down.connect(_shutting_down, weak=False, dispatch_uid="dflashq-stop")
    signals.celeryd_after_setup.connect(_unacked, weak=False, dispatch_uid="dflashq-hints")
    signals.worker_ready.connect(_own_sigquit, weak=False, dispatch_uid="dflashq-quit")


def _log(loglevel: int | None = None, logfile: str | None = None, **_: Any) -> None:
    log_setup.configure(loglevel or logging.INFO, logfile)
    install_excepthook()  # whatever a thread says, it says it in the log


def _shutting_down(**_: Any) -> None:
    """Admission stops at once; a second signal gives up what is in flight."""
    owner = runtime.current()
    if owner is not None:
        owner.generator.refuse_work()


def _unacked(instance: Any, **_: Any) -> None:
    """A hint is gone once it is popped. Kombu's book of unacknowledged messages would be a write
    that a full Redis refuses, which ends the consumer; and nobody needs a hint restored."""
    for queue in instance.app.amqp.queues.consume_from.values():
        queue.no_ack = True


def _own_sigquit(**_: Any) -> None:
    """Celery's SIGQUIT kills tasks one by one, which a pool of threads cannot: it raised instead,
    in the middle of a drain, and the worker waited for its engine after all."""
    signal.signal(signal.SIGQUIT, _quit)


def _quit(*_: object) -> None:
    """A drain without grace: what is in flight is given up, what is finished is kept."""
    _shutting_down()
    _shutting_down()
    worker_state.should_stop = 0
