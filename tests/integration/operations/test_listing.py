"""A run that is listed, but whose keys are gone from Redis, stops nothing that reads all runs."""

from __future__ import annotations

import json
import logging

import pytest
from click.testing import CliRunner

from dflashq.cli.root import root
from dflashq.cli.session import Session
from dflashq.core import keys
from dflashq.core.errors import UnknownRunError
from dflashq.core.model import RunRecord
from dflashq.ledger.connection import connect
from dflashq.operations.housekeeping.finalize import close_finished
from dflashq.operations.housekeeping.progress import keep_progress
from dflashq.operations.monitoring.poller import LedgerPoller
from dflashq.operations.monitoring.progress_object import read_progress
from dflashq.operations.runs.listing import status_if_known, statuses
from dflashq.operations.runs.manifest import read_manifest
from tests.support.committed_runs import CommittedRunFixture

BATCHES = {"batch-000000": range(5), "batch-000001": range(5, 10), "batch-000002": range(10, 12)}


@pytest.fixture
def wiped(fleet: CommittedRunFixture, record: RunRecord) -> CommittedRunFixture:
    """Run `r` is finished; run `gone` is listed before it and has no keys."""
    for batch, indexes in BATCHES.items():
        fleet.complete(fleet.commit(record, batch, indexes), "r", batch)
    connect(fleet.settings).hset(keys.RUNS, "gone", record.spec.queue)
    with pytest.raises(UnknownRunError):
        fleet.ledger.status("gone")
    return fleet


def test_it_is_left_out(wiped: CommittedRunFixture) -> None:
    assert [status.name for status in statuses(wiped.ledger)] == ["r"]
    assert status_if_known(wiped.ledger, "gone") is None


def test_status_shows_the_others(wiped: CommittedRunFixture) -> None:
    session = Session()
    session.__dict__["settings"] = wiped.settings
    result = CliRunner().invoke(root, ["status", "--json"], obj=session)
    assert result.exit_code == 0, result.output
    assert [run["name"] for run in json.loads(result.stdout)["runs"]] == ["r"]


def test_the_monitor_shows_the_others(wiped: CommittedRunFixture) -> None:
    poller = LedgerPoller(wiped.settings, wiped.ledger, wiped.blobs)
    poller.poll_and_record()
    assert poller.last_error == ""
    assert poller.snapshot is not None
    assert list(poller.snapshot.runs) == ["r"]


def test_manifest_and_progress_of_the_others_are_written(
    wiped: CommittedRunFixture, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    assert close_finished(wiped.ledger, wiped.blobs, {}) == ["r"]
    assert read_manifest(wiped.blobs, "r") is not None
    assert keep_progress(wiped.ledger, wiped.blobs, set(), every_s=60.0) == ["r"]
    assert read_progress(wiped.blobs, "r") is not None
    assert not caplog.records, "it is no failure that somebody has to look at"
