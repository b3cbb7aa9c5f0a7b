"""What ends an attempt without a word on its batch: trouble of the worker's own machine."""

from __future__ import annotations

import errno
from types import SimpleNamespace
from typing import Any

import pytest

from dflashq.blobs.s3 import Blobs
from dflashq.config import Settings
from dflashq.ledger import LeaseHeartbeat, Ledger
from dflashq.stages.generate.batch import GenerateBatch
from dflashq.stages.generate.stage import GenerateStage
from dflashq.stages.runner import StageRunner
from tests.support.ledger_fixture import B1, LedgerFixture


@pytest.fixture
def bench(settings: Settings) -> LedgerFixture:
    return LedgerFixture(settings.model_copy(update={"attempts": 2})).start(B1)


def handle(
    bench: LedgerFixture, monkeypatch: pytest.MonkeyPatch, exc: Exception, begin: bool
) -> str:
    """What becomes of a hint whose work raises `exc`."""

    def broken(work: GenerateBatch) -> None:
        if begin:
            bench.ledger.begin(work._attempt.lease)
        raise exc

    monkeypatch.setattr(GenerateBatch, "run", broken)
    ledger: Ledger = bench.ledger
    keeping = SimpleNamespace(flush=lambda attempt, timeout_s: True)
    nothing = lambda *_: None  # noqa: E731
    session: Any = SimpleNamespace(
        profile=SimpleNamespace(queue="q"),
        keeping=keeping,
        health=SimpleNamespace(withdrawn=False),
        enter=nothing,
        leave=nothing,
        note_error=nothing,
    )
    heartbeat = LeaseHeartbeat(ledger, 30.0)
    stage = GenerateStage(session, ledger, Blobs(bench.settings))
    runner = StageRunner(stage, bench.settings, "w1", ledger, heartbeat, queue="q", boot="h:1:a")
    return runner.process_hint(bench.run, B1)


@pytest.mark.parametrize("begin", [False, True], ids=["before-begin", "after-begin"])
@pytest.mark.parametrize(
    "exc",
    [OSError(errno.ENOSPC, "No space left on device"), MemoryError("no 8 GiB")],
    ids=["disk", "memory"],
)
def test_trouble_of_the_machine_spends_nothing_and_is_told(
    bench: LedgerFixture, monkeypatch: pytest.MonkeyPatch, exc: Exception, begin: bool
) -> None:
    for _ in range(5):
        assert "failed" in handle(bench, monkeypatch, exc, begin)
        assert bench.states() == {B1: "pending"}
    assert str(exc) in bench.ledger.story(bench.run, B1)[-1]["what"]


def test_a_batch_that_cannot_be_begun_is_not_tried_for_ever(
    bench: LedgerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        handle(bench, monkeypatch, ValueError("its prompts are no JSON"), begin=False)
    assert bench.states() == {B1: "dead"}
