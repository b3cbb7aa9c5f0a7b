"""A real Prometheus reads what a worker and the monitor serve; every panel finds its series."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests

from dflashq.config import Settings
from dflashq.core import metrics
from dflashq.core.model import ObjectRef
from dflashq.ledger import Ledger
from dflashq.operations.monitoring.prometheus import render
from dflashq.system.ports import free_port
from tests.integration.operations.test_prometheus import worker_state
from tests.support.fleet import wait_until
from tests.support.wait import WAIT_S
from tests.unit.deploy.test_alert_rules import DEPLOY, RULES, expressions
from workers.metrics_server import MetricsHttpServer, MetricsServer

pytestmark = [
    pytest.mark.fleet,
    pytest.mark.skipif(
        shutil.which("prometheus") is None,
        reason="no Prometheus here: apt-get install prometheus",
    ),
]

CONFIG = """
global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}
rule_files: [{rules}]
scrape_configs:
  - job_name: dflashq-worker
    static_configs: [{{targets: ["127.0.0.1:{worker}"]}}]
  - job_name: dflashq-monitor
    static_configs: [{{targets: ["127.0.0.1:{monitor}"]}}]
"""


@contextmanager
def serving(text: bytes) -> Iterator[int]:
    """A port that serves this text."""
    port = free_port()
    server = MetricsHttpServer("127.0.0.1", port, lambda: text)
    try:
        yield port
    finally:
        server.stop()


def engine_text() -> bytes:
    return "".join(f'{name}{{tp_rank="0"}} 3.0\n' for name in sorted(metrics.ENGINE)).encode()


def fill(ledger: Ledger) -> None:
    """A run under way with one worker, and a count in every counter."""
    ledger.register("r", "f" * 64, "generate.m", 20, 2)
    ledger.add("r", ["batch-000000", "batch-000001"])
    lease = ledger.claim("r", "batch-000000", "gpu1@host", 30).lease
    assert lease is not None
    counts = {"prompts": 10, "accepted": 9, "rejected_stub": 1, "output_tokens": 500}
    ledger.adopt("r", "batch-000001", ObjectRef("k", "0" * 64, "f" * 64, counts), counts)
    row = {"engine": "ready", "tokens_per_s": 50.0, "batches": ["r/batch-000000"]}
    ledger.announce("gpu1@host", row)
    values = {"run": "r", "reason": "stub", "outcome": "done", "verb": "put", "kind": "refused"}
    for counter in metrics.counted(metrics.WORKER):
        counter.add(**{name: values.get(name, "run_paused") for name in counter.labels})


@contextmanager
def prometheus(folder: Path, **ports: int) -> Iterator[str]:
    """A real server with our rules, which scrapes every second; its address."""
    (folder / "prometheus.yml").write_text(CONFIG.format(rules=DEPLOY / "rules.yml", **ports))
    port = free_port()
    with (folder / "prometheus.log").open("wb") as out:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(WAIT_S)


def query_result(server: str, query: str) -> list[Any]:
    """The series of a query; none while the server is not up yet."""
    try:
        answer = requests.get(f"{server}/api/v1/query", {"query": query}, timeout=WAIT_S)
    except requests.ConnectionError:
        return []
    if answer.status_code == 503:
        return []
    assert answer.ok, f"{query}: {answer.text}"
    return list(answer.json()["data"]["result"])


def test_every_panel_finds_its_series_and_no_alert_fires(
    settings: Settings, tmp_path: Path
) -> None:
    ledger = Ledger(settings)
    fill(ledger)
    worker = free_port()
    with serving(engine_text()) as engine, serving(render(ledger)) as monitor:
        state = worker_state(engine_url=f"http://127.0.0.1:{engine}")
        own = settings.model_copy(update={"metrics_port": worker, "gpu": "0"})
        served = MetricsServer(own, state.name, lambda: state, None)
        served.start()
        try:
            with prometheus(tmp_path, worker=worker, monitor=monitor) as server:
                up = 'sum(up{job=~"dflashq-.*"}) == 2'
                wait_until(lambda: bool(query_result(server, up)), "both are scraped")
                # rate() needs two scrapes.
                last = (
                    'count_over_time(sglang:num_running_reqs{worker="gpu1@host",run="r"}[1m]) > 3'
                )
                wait_until(
                    lambda: bool(query_result(server, last)), "the engine's series are there"
                )
                alerts = {row["alert"] for row in RULES}
                for where, text in expressions():
                    plain = text.replace("$run", ".*").replace("$worker", ".*")
                    if "label_values" not in plain:
                        assert bool(query_result(server, plain)) != (where in alerts), where
        finally:
            served.stop()
