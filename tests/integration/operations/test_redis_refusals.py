"""What people see of a Redis that refuses: what can be read, and what is not done."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from pydantic import SecretStr

from dflashq.blobs.s3 import Blobs
from dflashq.cli.root import root
from dflashq.config import Settings
from dflashq.core import metrics
from dflashq.embedded.redis import EmbeddedRedis
from dflashq.ledger import Hints
from dflashq.operations.monitoring.prometheus import fleet_values
from dflashq.operations.runs.control import resume
from dflashq.system.ports import free_port
from tests.conftest import REDIS_PASSWORD
from tests.support.env import variables
from tests.support.ledger_fixture import B1, B2, LedgerFixture
from tests.support.monitor_fixture import MonitorFixture
from tests.support.redis_refusals import (
    Refusal,
    busy,
    full,
    maxclients,
    misconf,
    noreplicas,
    readonly,
    rotated,
)
from tests.support.refusing_redis import RefusingRedis

LOADING = "LOADING Redis is loading the dataset in memory"


@pytest.fixture(scope="module")
def own_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedRedis]:
    folder = tmp_path_factory.mktemp("refused")
    with EmbeddedRedis(folder, free_port(), REDIS_PASSWORD, maxmemory="64mb") as server:
        yield server


@pytest.fixture
def own(
    settings: Settings, own_redis: EmbeddedRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Settings:
    """Settings for the server that refuses, also in the environment of the commands."""
    made = settings.model_copy(
        update={"redis_url": own_redis.url, "redis_password": SecretStr(REDIS_PASSWORD)}
    )
    monkeypatch.chdir(tmp_path)
    for name, value in variables(made).items():
        monkeypatch.setenv(name, value)
    return made


def call(*args: str, code: int = 0) -> Result:
    result = CliRunner().invoke(root, list(args))
    assert result.exit_code == code, (result.output, result.exception)
    assert "Traceback" not in result.output
    assert "bug" not in result.output
    return result


@pytest.mark.parametrize("refusal", [noreplicas, misconf, readonly, full])
def test_a_redis_that_refuses_writes_can_be_read(
    own: Settings, own_redis: EmbeddedRedis, refusal: Refusal
) -> None:
    bench = LedgerFixture(own).start(B1, B2)
    with refusal(own_redis):
        shown = call("status").output
        assert bench.run in shown
        # A full one refuses only what needs room, and workers work it empty.
        assert (f"{bench.run}: 0 of 2 batches done, Redis refuses writes" in shown) == (
            refusal is not full
        )
        assert "2 pending" in call("status", bench.run).output
        assert "2 pending" in call("watch", bench.run, "--once").output


@pytest.mark.parametrize("refusal", [busy, maxclients, rotated])
def test_a_redis_that_refuses_reads_is_1_in_one_sentence(
    own: Settings, own_redis: EmbeddedRedis, refusal: Refusal
) -> None:
    bench = LedgerFixture(own).start(B1)
    with refusal(own_redis):
        for command in ("status", "watch", "pause"):
            args = [] if command == "status" else [bench.run]
            lines = call(command, *args, code=1).output.strip().splitlines()
            assert len(lines) == 1, lines
            assert lines[0].startswith(f"dflashq {command}: Redis at "), lines
            assert " refuse" in lines[0]
            assert REDIS_PASSWORD not in lines[0]


@pytest.mark.parametrize("refusal", [noreplicas, readonly])
@pytest.mark.parametrize("command", ["pause", "resume", "cancel"])
def test_a_change_that_is_refused_is_1_and_changes_nothing(
    own: Settings, own_redis: EmbeddedRedis, refusal: Refusal, command: str
) -> None:
    bench = LedgerFixture(own).start(B1)
    yes = ["--yes"] if command == "cancel" else []
    with refusal(own_redis):
        said = call(command, bench.run, *yes, code=1).output
    assert f"dflashq {command}: Redis at " in said
    assert "refuses" in said
    assert bench.ledger.state(bench.run) == "active"


def test_a_run_is_resumed_on_a_full_redis_without_a_hint(
    own: Settings, own_redis: EmbeddedRedis, blobs: Blobs
) -> None:
    bench, hints = LedgerFixture(own).start(B1), Hints(own)
    bench.ledger.set_state(bench.run, "paused", "")
    with full(own_redis):
        assert resume(bench.ledger, blobs, hints, bench.run).state == "active"
    assert hints.waiting("q") == 0


def test_the_monitor_goes_on_with_what_it_can_read(
    own: Settings, own_redis: EmbeddedRedis, blobs: Blobs
) -> None:
    bench, stage = LedgerFixture(own).start(B1, B2), MonitorFixture(own)
    stage.look()
    with readonly(own_redis):
        stage.look()
        seen = stage.get(f"/runs/{bench.run}")["seen"]
        assert "READONLY" in seen["trouble"]
        assert "not recorded" in seen["trouble"]
        first = stage.monitor.seen().at
        stage.look()
        assert stage.monitor.seen().at > first, "the numbers stay fresh"
        assert fleet_values(stage.ledger)[metrics.LEDGER_UP] == {(): 1}
    stage.look()
    assert stage.get(f"/runs/{bench.run}")["seen"]["trouble"] == ""


def test_the_monitor_tells_why_nothing_can_be_read(own: Settings) -> None:
    stage = MonitorFixture(own)
    stage.look()
    with RefusingRedis(LOADING) as server:
        refused = MonitorFixture(own.model_copy(update={"redis_url": server.url}))
        refused.look()
        assert LOADING in refused.poller.trouble
        assert refused.client.get("/api/runs").status_code == 503
        assert fleet_values(refused.ledger) == {metrics.LEDGER_UP: {(): 0}}
