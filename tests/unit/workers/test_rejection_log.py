"""Rejected prompts in files that a person can search: one line each, by run, bounded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from dflashq.core import metrics
from dflashq.core.model import Verdict
from dflashq.ledger import Lease
from dflashq.stages.generate.accounting import count_settled, is_new
from dflashq.stages.generate.settled_prompt import SettledPrompt
from workers import rejection_log
from workers.rejection_log import RejectionLog


def settled(
    index: int, reason: str | None, detail: str = "", generations: int = 1
) -> SettledPrompt:
    return SettledPrompt(index, Verdict(reason, detail), {"generations": generations})


def lease(run: str) -> Lease:
    return Lease(run, "batch-000003", "1-abc", "w0@h", 0)


@pytest.fixture
def files(tmp_path: Path) -> Iterator[RejectionLog]:
    started = RejectionLog(tmp_path / "logs", "w0@h/x")
    started.start()
    yield started
    started.stop()


def rows(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_each_rejected_prompt_is_one_line_in_its_runs_file(
    files: RejectionLog, tmp_path: Path
) -> None:
    count_settled(lease("a"), settled(7, "looping", 'it says "ü" over and over'))
    count_settled(lease("a"), settled(8, None))
    count_settled(lease("b"), settled(9, "too_long", generations=0))
    files.stop()
    [row] = rows(tmp_path / "logs" / "rejected-a.w0@h_x.jsonl")
    assert (row["index"], row["batch"], row["reason"]) == (7, "batch-000003", "looping")
    assert row["detail"] == 'it says "ü" over and over'
    assert [row["index"] for row in rows(files.files.path("b"))] == [9]


def test_the_files_are_bounded(
    files: RejectionLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rejection_log, "FILE_BYTES", 2000)
    for index in range(200):
        count_settled(lease("a"), settled(index, "stub", "d" * 50))
    files.stop()
    paths = sorted((tmp_path / "logs").iterdir())
    assert len(paths) == 1 + rejection_log.OLDER_FILES
    assert all(path.stat().st_size <= 2000 for path in paths)
    assert rows(files.files.path("a"))[-1]["index"] == 199


def test_many_runs_do_not_hold_many_files_open(
    files: RejectionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rejection_log, "_OPEN_FILES", 2)
    for number in range(6):
        count_settled(lease(f"r{number}"), settled(number, "stub"))
    count_settled(lease("r0"), settled(99, "stub"))
    files.stop()
    assert [row["index"] for row in rows(files.files.path("r0"))] == [0, 99]


def test_verdicts_are_counted_by_reason() -> None:
    before = metrics.REJECTED.counts().get(("counted", "stub"), 0)
    count_settled(lease("counted"), settled(1, "stub"))
    count_settled(lease("counted"), settled(2, None))
    assert metrics.REJECTED.counts()["counted", "stub"] == before + 1
    assert metrics.ACCEPTED.counts()["counted",] == 1


def test_work_of_an_earlier_attempt_is_not_counted_again() -> None:
    assert is_new(settled(1, None, generations=2), kept_turns=1)
    assert not is_new(settled(1, "looping", generations=2), kept_turns=2)
    assert is_new(settled(1, "refused_input", generations=0), kept_turns=0)


def test_a_line_that_cannot_be_written_costs_itself_alone(
    files: RejectionLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it is that fails: the thread goes on, and what comes later is written."""
    errors = metrics.THREAD_ERRORS.counts()["rejections",]
    broken = iter([KeyError("run"), OSError(24, "Too many open files")])
    right = files.files._file

    def sometimes(run: str) -> object:
        if (failure := next(broken, None)) is not None:
            raise failure
        return right(run)

    monkeypatch.setattr(files.files, "_file", sometimes)
    for index in range(3):
        count_settled(lease("a"), settled(index, "stub"))
    files.stop()
    [row] = rows(tmp_path / "logs" / "rejected-a.w0@h_x.jsonl")
    assert row["index"] == 2
    assert metrics.THREAD_ERRORS.counts()["rejections",] - errors == 2
