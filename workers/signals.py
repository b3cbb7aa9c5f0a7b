"""Logging in one format, and what happens when the worker is told to stop."""

from __future__ import annotations

import logging
from typing import Any

from celery import signals

from workers import desk

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def install() -> None:
    """Connect our handlers to Celery's signals. Safe to repeat."""
    signals.setup_logging.connect(_log, weak=False, dispatch_uid="dflashq-log")
    signals.worker_shutting_down.connect(_shutting_down, weak=False, dispatch_uid="dflashq-stop")


def _log(loglevel: int | None = None, logfile: str | None = None, **_: Any) -> None:
    logging.basicConfig(level=loglevel or logging.INFO, format=FORMAT, filename=logfile, force=True)
    # Celery tells of every hint; the batches tell it better.
    logging.getLogger("celery.worker.strategy").setLevel(logging.WARNING)


def _shutting_down(**_: Any) -> None:
    """Admission stops at once; a second signal gives up what is in flight."""
    owner = desk.current()
    if owner is not None:
        owner.generator.refuse_work()
