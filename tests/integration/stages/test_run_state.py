"""The mirror of a run's state on S3 never holds what the ledger refused or has left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dflashq.blobs import runs
from dflashq.blobs.s3 import Blobs
from dflashq.config import Settings
from dflashq.core.model import Guard
from dflashq.core.quality_guard import JudgedPrompt
from dflashq.core.states import RunState
from dflashq.ledger.connection import connect
from dflashq.operations.runs import control
from dflashq.operations.runs.reconcile import reconcile
from dflashq.stages.generate import rejection_guard
from dflashq.stages.run_state import set_run_state
from tests.support.committed_runs import CommittedRunFixture

CANCELLED = ("cancelled", "enough")


@pytest.fixture
def fleet(settings: Settings, blobs: Blobs, tmp_path: Path) -> CommittedRunFixture:
    fleet = CommittedRunFixture(settings, blobs, tmp_path)
    fleet.enqueue("r")
    return fleet


def cancel(fleet: CommittedRunFixture) -> None:
    control.cancel(fleet.ledger, fleet.blobs, "r", "enough")


def test_a_state_is_in_the_ledger_and_on_s3(fleet: CommittedRunFixture) -> None:
    assert set_run_state(fleet.ledger, fleet.blobs, "r", RunState.PAUSED, "night") == "paused"
    assert fleet.ledger.state("r") is RunState.PAUSED
    assert runs.read_state(fleet.blobs, "r") == ("paused", "night")


def test_what_the_ledger_refuses_is_not_mirrored(fleet: CommittedRunFixture) -> None:
    cancel(fleet)
    state = set_run_state(fleet.ledger, fleet.blobs, "r", RunState.PAUSED, "night")
    assert state is RunState.CANCELLED
    assert runs.read_state(fleet.blobs, "r") == CANCELLED


def test_a_cancel_that_overtakes_the_mirror_stands(
    fleet: CommittedRunFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pause reaches the ledger first and S3 last."""
    write_state = runs.write_state

    def after_a_cancel(*args: str) -> None:
        monkeypatch.setattr(runs, "write_state", write_state)
        cancel(fleet)
        write_state(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(runs, "write_state", after_a_cancel)
    control.pause(fleet.ledger, fleet.blobs, "r", "night")
    assert runs.read_state(fleet.blobs, "r") == CANCELLED


class ThreadInPlace:
    """Does the work of a thread in the caller's own, so that the test knows when it is done."""

    def __init__(self, _name: str, work: Callable[[], object]) -> None:
        self._work = work

    def start(self) -> None:
        self._work()


def test_a_run_that_is_cancelled_meanwhile_is_not_paused_by_the_guard(
    fleet: CommittedRunFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard finds the run active; then it is cancelled; then Redis is lost."""
    read_state, write_attempts = fleet.ledger.state, []

    def cancelled_after_it_was_read(run: str) -> RunState:
        state = read_state(run)
        if state is RunState.ACTIVE:
            write_attempts.append(run)
            cancel(fleet)
        return state

    monkeypatch.setattr(rejection_guard, "OneShotThread", ThreadInPlace)
    monkeypatch.setattr(fleet.ledger, "state", cancelled_after_it_was_read)
    guard = rejection_guard.RejectionGuard(fleet.ledger, fleet.blobs)
    guard.begin("r", Guard(window=20, max_rejected=0.1))
    for index in range(20):
        guard.note("r", JudgedPrompt(f"index {index}", "looping", 10))
    assert write_attempts == ["r"], "the guard has tried to pause the run"
    assert runs.read_state(fleet.blobs, "r") == CANCELLED
    connect(fleet.settings).flushdb()
    assert reconcile(fleet.ledger, fleet.blobs, fleet.hints, "r").state == "cancelled"
