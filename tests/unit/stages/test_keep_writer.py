"""Keeping gathers what comes one by one, and hurries when somebody waits for it."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator

import pytest

from dflashq.core import metrics
from dflashq.ledger import Lease
from dflashq.ledger.kept_codec import KeptEntry
from dflashq.stages import keep_writer
from dflashq.stages.attempt import Attempt
from dflashq.stages.keep_writer import PER_CALL, KeepWriter
from tests.support.wait import WAIT_S


class Book:
    """A ledger that only writes down what it is told to keep."""

    def __init__(self) -> None:
        self.calls: list[list[KeptEntry]] = []
        self.begun: list[Lease] = []
        self.heard = threading.Semaphore(0)

    def keep(self, lease: Lease, entries: list[KeptEntry]) -> bool:
        self.calls.append(entries)
        self.heard.release()
        return True

    def begin(self, lease: Lease) -> None:
        self.begun.append(lease)
        self.heard.release()


@pytest.fixture
def book(monkeypatch: pytest.MonkeyPatch) -> Book:
    """Nothing is written for a minute unless something hurries."""
    monkeypatch.setattr(keep_writer, "GATHER_S", 60.0)
    return Book()


@pytest.fixture
def writer(book: Book) -> Iterator[KeepWriter]:
    made = KeepWriter(book)  # type: ignore[arg-type]
    yield made
    made.close()


def attempt(batch: str) -> Attempt:
    return Attempt(Lease("run", batch, "", "w", 1), 0.0)


def fill(writer: KeepWriter, one: Attempt, numbers: range) -> list[KeptEntry]:
    entries = [(f"{number}:0", b"x") for number in numbers]
    for entry in entries:
        writer.add(one, *entry)
    return entries


def test_what_comes_one_by_one_is_written_in_one_call(book: Book, writer: KeepWriter) -> None:
    one = attempt("b")
    entries = fill(writer, one, range(PER_CALL - 1))
    assert book.calls == []
    assert writer.flush(one, WAIT_S)
    assert book.calls == [entries]


def test_a_full_call_waits_for_nobody(book: Book, writer: KeepWriter) -> None:
    entries = fill(writer, attempt("b"), range(PER_CALL))
    assert book.heard.acquire(timeout=WAIT_S)
    assert book.calls == [entries]


def test_a_flush_of_many_calls_gathers_between_none_of_them(book: Book, writer: KeepWriter) -> None:
    one, other = attempt("b"), attempt("c")
    entries = fill(writer, one, range(3 * PER_CALL + 5))
    aside = fill(writer, other, range(1000, 1002))
    assert writer.flush(one, WAIT_S)
    assert [row for call in book.calls for row in call if row not in aside] == entries
    assert writer.flush(other, WAIT_S)
    assert aside in book.calls


def test_what_is_forgotten_while_it_gathers_holds_up_nothing(
    book: Book, writer: KeepWriter
) -> None:
    gone, one = attempt("b"), attempt("c")
    fill(writer, gone, range(3))
    writer.forget(gone)
    entries = fill(writer, one, range(3))
    assert writer.flush(one, WAIT_S)
    assert book.calls == [entries]


def test_a_beginning_is_told_at_once(book: Book, writer: KeepWriter) -> None:
    one = attempt("b")
    writer.begin(one)
    writer.begin(one)
    assert book.heard.acquire(timeout=WAIT_S)
    assert book.begun == [one.lease]
    assert book.calls == []


def test_the_end_is_not_gathered_for(book: Book) -> None:
    made = KeepWriter(book)  # type: ignore[arg-type]
    fill(made, attempt("b"), range(3))
    made.close()
    assert book.calls == []


class Exhausted(Book):
    """A ledger of a process without descriptors, for one batch or for all, a few times."""

    def __init__(self, times: int, batch: str = "") -> None:
        super().__init__()
        self.times, self.batch = times, batch

    def keep(self, lease: Lease, entries: list[KeptEntry]) -> bool:
        if self.times and self.batch in ("", lease.batch):
            self.times -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().keep(lease, entries)


def test_what_nobody_expected_is_outlived_and_what_waits_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keep_writer, "GATHER_S", 0.0)
    errors = metrics.THREAD_ERRORS.counts().get(("keeping",), 0)
    exhausted = Exhausted(2)
    made = KeepWriter(exhausted)  # type: ignore[arg-type]
    one = attempt("b")
    entries = fill(made, one, range(3))
    assert made.flush(one, WAIT_S)
    made.close()
    assert exhausted.calls == [entries]
    assert metrics.THREAD_ERRORS.counts()["keeping",] - errors == 2


def test_one_batch_that_cannot_be_kept_does_not_hold_up_the_others(book: Book) -> None:
    exhausted = Exhausted(10**9, "bad")
    made = KeepWriter(exhausted)  # type: ignore[arg-type]
    bad, good = attempt("bad"), attempt("good")
    fill(made, bad, range(3))
    entries = fill(made, good, range(3))
    assert made.flush(good, WAIT_S)
    made.close()
    assert exhausted.calls == [entries]
