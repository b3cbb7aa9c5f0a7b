"""What a worker waits for as it begins, and what it does not wait for."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from celery.exceptions import WorkerShutdown
from celery.worker import state as worker_state

from dflashq.core.errors import (
    BlobError,
    DflashqError,
    LedgerError,
    LedgerPasswordError,
    LedgerRefusedError,
    LedgerUnreachableError,
    UsageError,
)
from workers import service_wait
from workers.service_wait import wait_out


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_wait, "PAUSE_S", 0.001)


def failing(*failures: DflashqError) -> Callable[[], str]:
    """A call that fails so often, then answers."""
    left = list(failures)

    def call() -> str:
        if left:
            raise left.pop(0)
        return "served"

    return call


def test_what_passes_is_waited_out_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    outages = [
        LedgerUnreachableError("it is away"),
        *[LedgerRefusedError("it loads", "LOADING")] * 50,
        LedgerPasswordError("it does not know us", "WRONGPASS"),
        BlobError("S3 is away", transient=True),
    ]
    assert wait_out(failing(*outages), "the boot") == "served"
    lines = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert lines == ["the boot waits: it is away"]


@pytest.mark.parametrize(
    "failure", [LedgerError("NOPERM"), BlobError("no such bucket"), UsageError("no profile")]
)
def test_what_waiting_cannot_mend_is_raised(failure: DflashqError) -> None:
    with pytest.raises(type(failure)):
        wait_out(failing(failure), "the boot")


def test_a_password_that_stays_refused_is_raised() -> None:
    refused = LedgerPasswordError("set DFLASHQ_REDIS_PASSWORD", "WRONGPASS")
    with pytest.raises(LedgerPasswordError):
        wait_out(failing(*[refused] * 3), "the boot", password_s=0.0)
    assert wait_out(failing(*[refused] * 3), "the consumer", password_s=None) == "served"


def test_a_stop_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_state, "should_stop", 0)
    with pytest.raises(WorkerShutdown):
        wait_out(failing(*[LedgerUnreachableError("it is away")] * 10**6), "the boot")
