"""The gate closes when finished work cannot be kept, and opens when it can or there is none."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from dflashq.core.errors import LedgerRefusedError
from dflashq.ledger import Lease
from dflashq.ledger.kept_codec import KeptEntry
from dflashq.stages import keep_blockage, keep_writer
from dflashq.stages.attempt import Attempt
from dflashq.stages.keep_blockage import KeepBlockage
from dflashq.stages.keep_writer import KeepWriter
from tests.support.wait import WAIT_S

WORDS = "READONLY You can't write against a read only replica."
REASON = f"finished work cannot be kept: {WORDS}"


class Gate:
    """Remembers why it is closed, and tells whoever waits for a change."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self._change = threading.Condition()

    def close(self, reason: str) -> None:
        with self._change:
            self.reasons.append(reason)
            self._change.notify_all()

    def open(self, reason: str) -> None:
        with self._change:
            self.reasons.remove(reason)
            self._change.notify_all()

    def becomes(self, *reasons: str) -> bool:
        with self._change:
            return self._change.wait_for(lambda: self.reasons == list(reasons), WAIT_S)


class Replica:
    """A ledger that refuses whatever is written, until it is a master again."""

    def __init__(self) -> None:
        self.master = self.full = False
        self.asked = threading.Semaphore(0)

    def keep(self, lease: Lease, entries: list[KeptEntry]) -> bool:
        self._refuse()
        return not self.full

    def begin(self, lease: Lease) -> int:
        self._refuse()
        return 1

    def _refuse(self) -> None:
        self.asked.release()
        if not self.master:
            raise LedgerRefusedError("Redis refuses", WORDS)


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def ledger() -> Replica:
    return Replica()


@pytest.fixture
def writer(ledger: Replica, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> Iterator[KeepWriter]:
    monkeypatch.setattr(keep_writer, "GATHER_S", 0.01)
    monkeypatch.setattr(keep_writer, "RETRY_S", 0.01)
    monkeypatch.setattr(keep_blockage, "PATIENCE_S", 0.2)
    made = KeepWriter(ledger)  # type: ignore[arg-type]
    made.blockage = KeepBlockage(gate.close, gate.open)
    yield made
    made.close()


def attempt(batch: str) -> Attempt:
    return Attempt(Lease("run", batch, "", "w", 1), 0.0)


def test_the_gate_closes_with_the_words_of_redis_until_work_is_kept(
    writer: KeepWriter, ledger: Replica, gate: Gate
) -> None:
    one = attempt("b")
    writer.add(one, "0:0", b"x")
    assert gate.becomes(REASON)
    ledger.master = True
    assert gate.becomes()
    assert writer.flush(one, WAIT_S)


def test_a_beginning_that_is_refused_closes_it_too(writer: KeepWriter, gate: Gate) -> None:
    writer.begin(attempt("b"))
    assert gate.becomes(REASON)


def test_the_gate_opens_when_nothing_waits_any_more(writer: KeepWriter, gate: Gate) -> None:
    one, other = attempt("b"), attempt("c")
    writer.add(one, "0:0", b"x")
    writer.begin(other)
    assert gate.becomes(REASON)
    writer.forget(one)
    assert gate.reasons == [REASON], "another one still waits"
    writer.forget(other)
    assert gate.becomes()


def test_a_short_refusal_closes_nothing(
    writer: KeepWriter, ledger: Replica, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keep_blockage, "PATIENCE_S", 600.0)
    one = attempt("b")
    writer.add(one, "0:0", b"x")
    for _ in range(5):
        assert ledger.asked.acquire(timeout=WAIT_S)
    ledger.master = True
    assert writer.flush(one, WAIT_S)
    assert gate.reasons == []


def test_a_full_budget_is_no_blockage(writer: KeepWriter, ledger: Replica, gate: Gate) -> None:
    """It lets the oldest batch go on, which makes room."""
    ledger.master = ledger.full = True
    writer.add(attempt("b"), "0:0", b"x")
    for _ in range(40):
        assert ledger.asked.acquire(timeout=WAIT_S)
    assert writer.full
    assert gate.reasons == []
