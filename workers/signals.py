"""Handlers of Celery's signals: the log's format, hints without acknowledgement, the stop."""

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
    install_excepthook()  # a thread that fails must not write to stderr past the log


def _shutting_down(**_: Any) -> None:
    """Stop admission at once; at a second signal, give up what is in flight."""
    owner = runtime.current()
    if owner is not None:
        owner.generator.refuse_work()


def _unacked(instance: Any, **_: Any) -> None:
    """Consume without acknowledgements: a hint is gone once it is popped.

    Kombu would note each unacknowledged message in Redis. A full Redis refuses that write, and the
    refusal ends the consumer; nobody needs a hint restored.
    """
    for queue in instance.app.amqp.queues.consume_from.values():
        queue.no_ack = True


def _own_sigquit(**_: Any) -> None:
    """Replace Celery's handler of SIGQUIT, which kills tasks one by one.

    A pool of threads cannot do that: the handler raised in the middle of a drain, and the worker
    waited for its engine all the same.
    """
    signal.signal(signal.SIGQUIT, _quit)


def _quit(*_: object) -> None:
    """Drain without grace: give up what is in flight, keep what is finished."""
    _shutting_down()
    _shutting_down()
    worker_state.should_stop = 0
