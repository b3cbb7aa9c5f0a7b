"""A third stage, of its own folder: claimed, kept, killed, resumed, committed and shown."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from dflashq.blobs.s3 import Blobs
from dflashq.cli.root import root
from dflashq.config import Settings
from dflashq.core import codec, keys
from dflashq.core.model import RunRecord
from dflashq.core.stage_spec import STAGES
from dflashq.stages.request import request_stage
from tests.support.committed_runs import CommittedRunFixture
from tests.support.copy_stage.stage import COPY, HOLD_FILE
from tests.support.env import environment, variables
from tests.support.paths import ROOT
from tests.support.sample_rows import commit, sample
from tests.support.wait import WAIT_S, wait_until

RUN, BATCHES = "r", ("batch-000000", "batch-000001", "batch-000002")


class CopyWorker:
    """A worker process of the copy stage; a context manager."""

    def __init__(self, settings: Settings, hold: Path, log: Path) -> None:
        self.log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "celery", "-A", "tests.support.copy_stage.app"),
                    *("worker", "--stage", "copy", "--without-gossip", "--without-mingle"),
                ],
                cwd=ROOT,
                env=environment(settings) | {HOLD_FILE: str(hold)},
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def __enter__(self) -> CopyWorker:
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.kill()
        self.process.wait()

    def check(self) -> None:
        assert self.process.poll() is None, self.log.read_text()


def commit_and_complete(fleet: CommittedRunFixture, record: RunRecord, number: int) -> None:
    first = 5 * number
    indexes = range(first, min(first + 5, 12))
    ref = commit(fleet.blobs, record, BATCHES[number], [sample(index) for index in indexes])
    fleet.complete(ref, RUN, BATCHES[number])


def test_a_third_stage_survives_a_kill_and_goes_on_from_what_it_kept(
    fast: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(STAGES, COPY.name, COPY)
    blobs = Blobs(fast)
    fleet = CommittedRunFixture(fast, blobs, tmp_path)
    record = fleet.enqueue().record
    commit_and_complete(fleet, record, 0)
    commit_and_complete(fleet, record, 1)
    assert request_stage(fleet.ledger, blobs, RUN, COPY) == 2
    hold = tmp_path / "hold"
    hold.touch()

    with CopyWorker(fast, hold, tmp_path / "first.log") as first:

        def kept() -> bool:
            first.check()
            states = fleet.ledger.batch_states(RUN, COPY.name)
            return [(row.state, row.kept) for row in states] == [("leased", 1), ("leased", 1)]

        wait_until(kept, "both batches are leased, and one line of each is kept")
        first.process.kill()
        first.process.wait(WAIT_S)
    assert not list(blobs.list(keys.stage_prefix(RUN, COPY)))

    hold.unlink()
    with CopyWorker(fast, hold, tmp_path / "second.log") as second:

        def done(count: int) -> bool:
            second.check()
            return fleet.ledger.status(RUN).stages[COPY.name].done == count

        wait_until(lambda: done(2), "both batches are copied")
        commit_and_complete(fleet, record, 2)  # nobody asks for this one
        wait_until(lambda: done(3), "what was committed later is copied too")
        second.process.terminate()
        assert second.process.wait(WAIT_S) == 0, second.log.read_text()

    done_set = fleet.ledger.done(RUN, COPY.name)
    assert [done_set[batch].counts["resumed"] for batch in BATCHES] == [1, 1, 0]
    for batch in BATCHES:
        copied = codec.decompress(blobs.get(keys.stage_object(RUN, COPY, batch)).body)
        assert copied == codec.decompress(blobs.get(keys.completions_object(RUN, batch)).body)
    states = fleet.ledger.batch_states(RUN, COPY.name)
    assert [row.attempts for row in states] == [2, 2, 1]
    assert [row.kept for row in states] == [0, 0, 0]
    for name, value in variables(fast).items():
        monkeypatch.setenv(name, value)
    shown = CliRunner().invoke(root, ["status", RUN])
    assert "copy      3 of 3 batches done, 0 leased, 0 pending, 0 dead" in shown.output
