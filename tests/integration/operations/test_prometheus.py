"""Metrics: each declared once, with unit and help; each set; none exposed that is not declared."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from dflashq.config import Settings
from dflashq.core import metrics
from dflashq.core.metrics import Counter, Gauge
from dflashq.ledger import Ledger
from dflashq.operations.monitoring.prometheus import fleet_values, render
from tests.support.paths import ROOT
from workers.metrics_server import WorkerCollector, engine_families, port_of, readings
from workers.runtime import WorkerRuntime

DECLARED = {**metrics.WORKER, **metrics.FLEET}
CONSTANTS = {n: m for n, m in vars(metrics).items() if isinstance(m, Counter | Gauge)}
SOURCES = [p for room in ("dflashq", "workers") for p in sorted((ROOT / room).rglob("*.py"))]
UNIT_SUFFIX = {"bytes": "_bytes", "seconds": "_seconds", "tokens per second": "_tokens_per_second"}


def used() -> set[str]:
    """The names of metrics constants that some module outside their own file uses."""
    found = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "metrics":
                found.add(node.attr)
    return found & set(CONSTANTS)


def fake_runtime(**gate: Any) -> WorkerRuntime:
    """What a desk shows to its metrics."""
    shown = {"in_flight": 3, "limit": 8, "waiting": 2, "reasons": ("draining",)} | gate
    attempt = SimpleNamespace(lease=SimpleNamespace(run="r"))
    return cast(
        "WorkerRuntime",
        SimpleNamespace(
            name="gpu1@host",
            settings=SimpleNamespace(gpu="1", engine_api_key=None),
            profile=SimpleNamespace(launch=SimpleNamespace(kind="sglang")),
            session=SimpleNamespace(
                gate=SimpleNamespace(**shown),
                keeping=SimpleNamespace(full=False),
                sick="",
            ),
            generator=SimpleNamespace(active=lambda: [attempt, attempt], hints_taken=7),
            heartbeat=SimpleNamespace(held=list, last_answer=0.0),
            engine_url="",
            engine_restarts=4,
        ),
    )


def test_names_units_and_helps_follow_the_conventions() -> None:
    assert len(DECLARED) == len(CONSTANTS) > 30
    for name, metric in DECLARED.items():
        assert re.fullmatch(r"dflashq_[a-z0-9_]+", name), name
        assert metric.help.endswith("."), name
        assert name.endswith("_total") or not isinstance(metric, Counter), name
        suffix = UNIT_SUFFIX.get(metric.unit)
        assert suffix is None or name.removesuffix("_total").endswith(suffix), name
        assert metric.unit or "1 " in metric.help, f"{name} has no unit and is no flag"


def test_every_metric_is_set_somewhere() -> None:
    assert set(CONSTANTS) - used() == set()


def test_only_declared_metrics_are_made() -> None:
    """Nobody makes a metric beside the registry: the client library is known to two modules."""
    users = [p for p in SOURCES if "prometheus_client" in p.read_text(encoding="utf-8")]
    assert [str(p.relative_to(ROOT)) for p in users] == [
        "dflashq/operations/monitoring/prometheus.py",
        "workers/metrics_server.py",
    ]
    strings = {
        found
        for path in SOURCES
        for found in re.findall(r'"(dflashq_[a-z0-9_]+)"', path.read_text(encoding="utf-8"))
    }
    assert strings == set(DECLARED)


def test_every_reading_of_a_worker_is_taken() -> None:
    taken = readings(fake_runtime())
    assert {reading.name for reading in taken} == {
        name for name, metric in metrics.WORKER.items() if isinstance(metric, Gauge)
    }
    for reading, values in taken.items():
        assert all(len(labels) == len(reading.labels) for labels in values), reading.name


def test_a_worker_shows_its_metrics_with_its_name() -> None:
    families = {f.name: f for f in WorkerCollector(fake_runtime()).collect()}
    assert {f"{n}_total" if f.type == "counter" else n for n, f in families.items()} == set(
        metrics.WORKER
    )
    [restarts] = families["dflashq_engine_restarts"].samples
    assert (restarts.name, restarts.value) == ("dflashq_engine_restarts_total", 4)
    assert restarts.labels == {"worker": "gpu1@host", "gpu": "1"}
    [closed] = families["dflashq_gate_closed"].samples
    assert closed.labels["reason"] == "draining"
    [held] = families["dflashq_batches_at_work"].samples
    assert (held.labels["run"], held.value) == ("r", 2)


def test_a_counter_counts_by_its_labels_and_refuses_others() -> None:
    counter = Counter("dflashq_x_total", "things", "Things.", ("run", "reason"))
    assert counter.counts() == {}
    counter.add(run="a", reason="b")
    counter.add(2, reason="b", run="a")
    assert counter.counts() == {("a", "b"): 3}
    with pytest.raises(ValueError, match="has the labels"):
        counter.add(run="a")
    assert Counter("dflashq_y_total", "things", "Things.").counts() == {(): 0}


def test_the_fleet_is_rendered_from_the_ledger(settings: Settings) -> None:
    ledger = Ledger(settings)
    ledger.register("r", "f" * 64, "generate.m", 20, 3)
    ledger.add("r", ["batch-000000", "batch-000001"])
    lease = ledger.claim("r", "batch-000000", "w0", 30).lease
    assert lease is not None
    ledger.kill(lease, "a test says so")
    ledger.announce("w0", {"engine": "ready", "tokens_per_s": 12.5, "batches": ["r/batch-000001"]})
    ledger.announce("w1", {"engine": "ready", "sick": "it answers HTTP 500 only"})
    assert set(fleet_values(ledger)) == set(metrics.FLEET.values())
    found = {
        (s.name, tuple(sorted(s.labels.items()))): s.value
        for f in text_string_to_metric_families(render(ledger).decode())
        for s in f.samples
    }
    run = ("run", "r")
    assert found["dflashq_run_state", (run, ("state", "active"))] == 1
    assert found["dflashq_run_batches", (run, ("state", "dead"))] == 1
    assert found["dflashq_run_batches", (run, ("state", "pending"))] == 1
    assert found["dflashq_run_batches", (run, ("state", "waiting"))] == 1
    assert found["dflashq_run_prompts", (run,)] == 20
    assert found["dflashq_run_tokens_per_second", (run,)] == 12.5
    assert found["dflashq_workers", (("engine", "ready"),)] == 1
    assert found["dflashq_workers", (("engine", "sick"),)] == 1
    assert found["dflashq_ledger_up", ()] == 1
    assert found["dflashq_redis_memory_bytes", ()] > 0


def test_without_redis_the_fleet_says_just_that(settings: Settings) -> None:
    before = metrics.REDIS_ERRORS.counts().get(("unreachable",), 0)
    away = settings.model_copy(update={"redis_url": "redis://127.0.0.1:1/0"})
    text = render(Ledger(away)).decode()
    assert "dflashq_ledger_up 0.0" in text
    assert "dflashq_run_state{" not in text
    assert metrics.REDIS_ERRORS.counts()["unreachable",] > before


@pytest.mark.parametrize(
    ("port", "gpu", "worker", "expected"),
    [
        (0, "3", "gpu3@h", 0),
        (9100, "3", "mine@h", 9103),
        (9100, "GPU-7c1b", "gpu5@h", 9105),
        (9100, "GPU-7c1b", "mine@h", 9100),
        (9100, "", "celery@h", 9100),
    ],
)
def test_the_workers_of_a_host_listen_on_ports_of_their_own(
    settings: Settings, port: int, gpu: str, worker: str, expected: int
) -> None:
    mine = settings.model_copy(update={"metrics_port": port, "gpu": gpu})
    assert port_of(mine, worker) == expected


def test_of_the_engine_only_its_own_metrics_are_passed_on() -> None:
    text = 'sglang:num_running_reqs{tp_rank="0"} 3.0\nprocess_cpu_seconds_total 7.0\n'
    assert [family.name for family in engine_families(text)] == ["sglang:num_running_reqs"]
    assert engine_families("<html>502</html>") == []
    assert engine_families("") == []


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool here")
def test_promtool_finds_nothing_wrong_with_what_is_exposed(settings: Settings) -> None:
    ledger = Ledger(settings)
    ledger.register("r", "f" * 64, "generate.m", 20, 3)
    registry = CollectorRegistry()
    registry.register(WorkerCollector(fake_runtime()))
    for text in (render(ledger), generate_latest(registry)):
        done = subprocess.run(
            ["promtool", "check", "metrics"], input=text, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout + done.stderr == b""
