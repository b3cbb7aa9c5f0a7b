"""A fleet seen from outside: metrics, JSON logs, rejections, notices, Flower; no secret in any."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
import requests
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr

from dflashq.blobs import commits
from dflashq.config import Settings
from dflashq.core import metrics
from dflashq.system.ports import free_port
from tests.conftest import REDIS_PASSWORD, SECRET_KEY
from tests.support.engine_emulator import emulated_profile, is_emulator
from tests.support.env import environment
from tests.support.fault_fleet import engine_of, engine_port, set_engine_faults
from tests.support.fleet import ROOT, FleetHarness, WorkerHandle, prompts_file, wait_until
from tests.support.secret_scan import files, objects, redis_keys, spellings
from tests.support.wait import WAIT_S
from tests.support.webhook_receiver import WebhookReceiver

pytestmark = pytest.mark.fleet

ENGINE_KEY, WEBHOOK_SECRET = "engine-key-5f2c", "webhook-secret-91ab"
MONITOR_TOKEN = "monitor-token-77aa-0123456789"
SECRETS = (REDIS_PASSWORD, SECRET_KEY, ENGINE_KEY, WEBHOOK_SECRET, MONITOR_TOKEN, "secret-path")

# At their most talkative; the last one is asked for what there is not.
COMMANDS = ("-vv status", "-vv status seen", "-vv verify seen", "-vv status nothing")
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Flower:
    """`celery -A workers flower` as people start it; `get` keeps what it answered."""

    def __init__(self, settings: Settings, log: Path) -> None:
        self.url, self.answers = f"http://127.0.0.1:{(port := free_port())}", dict[str, bytes]()
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "celery", "-A", "workers", "flower"),
                    *("--address=127.0.0.1", f"--port={port}"),
                ],
                cwd=ROOT,
                env=environment(settings) | {"FLOWER_UNAUTHENTICATED_API": "true"},
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def get(self, path: str) -> requests.Response | None:
        try:
            answer = requests.get(self.url + path, timeout=WAIT_S)
        except requests.ConnectionError:
            return None
        self.answers[path] = answer.content
        return answer

    def shows(self, worker: str) -> bool:
        answer = self.get("/workers")
        return answer is not None and worker in answer.text

    def tasks(self) -> list[dict[str, Any]]:
        answer = self.get("/api/tasks?taskname=dflashq.generate")
        return list(answer.json().values()) if answer is not None and answer.ok else []


@contextmanager
def flower(settings: Settings, log: Path) -> Iterator[Flower]:
    page = Flower(settings, log)
    try:
        yield page
    finally:
        page.process.kill()
        page.process.wait()


def scraped(port: int) -> tuple[Samples, str]:
    asks = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"}
    text = requests.get(f"http://127.0.0.1:{port}/metrics", headers=asks, timeout=WAIT_S).text
    families = list(text_string_to_metric_families(text))
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }, text


def command_output(settings: Settings, words: str) -> bytes:
    """What a command says, on both streams."""
    done = subprocess.run(
        [str(Path(sys.executable).with_name("dflashq")), *words.split()],
        cwd=ROOT,
        env=environment(settings),
        capture_output=True,
        check=False,
    )
    assert len(done.stdout + done.stderr) > 100
    return done.stdout + done.stderr


def value(samples: Samples, name: str, **labels: str) -> float:
    """The sum of all samples of this name that carry these labels."""
    wanted = set(labels.items())
    return sum(v for (n, has), v in samples.items() if n == name and wanted <= has)


def test_a_run_is_seen_from_outside_and_no_secret_is(
    settings: Settings, tmp_path: Path, tiny_model: Path
) -> None:
    port, run = free_port(), "seen"
    profile = emulated_profile(
        tmp_path,
        model_dir=tiny_model,
        lengths="uniform:50:300",
        token_ms=10,
        faults={"http_400": 0.15, "truncated": 0.15},
        sampling={"max_new_tokens": 512},
    )
    with WebhookReceiver() as receiver:
        own = settings.model_copy(
            update={
                "lease_ttl_s": 3.0,
                "sweep_s": 0.5,
                "drain_grace_s": 1.0,
                "log_format": "json",
                "metrics_port": port,
                "notify_file": str(tmp_path / "notices.jsonl"),
                "webhook_url": SecretStr(receiver.url),
                "webhook_secret": SecretStr(WEBHOOK_SECRET),
                "engine_api_key": SecretStr(ENGINE_KEY),
                "monitor_token": SecretStr(MONITOR_TOKEN),
            }
        )
        with (
            FleetHarness(own, profile, tmp_path) as fleet,
            flower(own, tmp_path / "flower.log") as page,
        ):
            worker = fleet.start("w0", loglevel="DEBUG")
            wait_until(lambda: page.shows(worker.name), "Flower sees the worker")
            fleet.enqueue(run, prompts_file(tmp_path / "p.jsonl", 60), batch_size=10)
            wait_until(lambda: len(page.tasks()) >= 3, "Flower sees tasks")
            set_engine_faults(
                port_of(worker), {"slow": 100.0}
            )  # the run must not end before it is looked at
            tasks = page.tasks()
            assert {task["name"] for task in tasks} == {"dflashq.generate"}
            assert {task["worker"] for task in tasks} == {worker.name}
            assert any("'seen', 'batch-000000'" in task["args"] for task in tasks)
            for path in ("/", "/broker", f"/worker/{worker.name}", "/tasks", "/metrics"):
                assert page.get(path) is not None
            info = page.get("/api/workers?refresh=true")
            assert info is not None
            assert "broker_url" in info.text
            during, during_text = scraped(port)
            set_engine_faults(port_of(worker), {"slow": 1.0})
            page.process.kill()  # nobody asked Flower
            page.process.wait()
            fleet.wait_finished(run)
            report = fleet.oracle(run)
            wait_until(lambda: len(receiver.requests) == 1, "the end is told")
            after, after_text = scraped(port)
            assert_metrics(during, after, worker.name, run)
            counters = fleet.ledger.status(run).counters
            assert value(after, "dflashq_accepted_total", run=run) == report.accepted
            for reason, count in report.rejected.items():
                got = value(after, "dflashq_rejected_total", run=run, reason=reason)
                assert got == count, reason
            assert value(after, "dflashq_generated_tokens_total") == counters["output_tokens"]
            assert value(after, "dflashq_generations_total") == counters["generations"]
            assert value(after, "dflashq_batch_attempts_total", outcome="done") == 6
            assert worker.stop() == 0
            assert_rejections(fleet, own.state_dir / "logs" / f"rejected-{run}.{worker.name}.jsonl")
            assert_log(worker.log, run)
            assert_told(receiver, tmp_path / "notices.jsonl", run, report.accepted)
            seen = {
                **{f"dflashq {words}": command_output(own, words) for words in COMMANDS},
                **{f"flower:{path}": body for path, body in page.answers.items()},
                "scrape": (during_text + after_text).encode(),
                "webhook": b"".join(got.body for got in receiver.requests),
            }
            assert_no_secret(fleet, tmp_path, seen)
            fleet.assert_no_orphans()


def port_of(worker: WorkerHandle) -> int:
    engine = engine_of(worker)
    assert engine is not None
    return engine_port(engine)


def assert_metrics(during: Samples, after: Samples, worker: str, run: str) -> None:
    """Ours and the engine's, with the worker's name and, while it works, its run."""
    ours = {name for name, _ in during if name.startswith("dflashq_")}
    assert ours <= set(metrics.WORKER)
    assert all(("worker", worker) in has for name, has in during)
    assert value(during, "dflashq_engine_up") == 1
    assert value(during, "dflashq_in_flight") > 0
    assert value(during, "dflashq_in_flight_limit") >= value(during, "dflashq_in_flight")
    assert value(during, "dflashq_batches_at_work", run=run) >= 1
    assert value(during, "sglang:num_running_reqs", run=run, worker=worker, gpu="") > 0
    assert value(after, "sglang:generation_tokens_total", worker=worker) > 0
    assert value(after, "dflashq_batches_at_work") == 0
    assert value(after, "dflashq_hints_taken_total") >= 6


def assert_rejections(fleet: FleetHarness, path: Path) -> None:
    """The worker's file has what S3 has, each once."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    on_s3 = [
        (row["index"], batch, row["reason"], row["detail"])
        for batch, ref in fleet.ledger.done("seen").items()
        for row in commits.rejected_rows(fleet.blobs, ref)
    ]
    logged = [(row["index"], row["batch"], row["reason"], row["detail"]) for row in rows]
    assert sorted(logged) == sorted(on_s3)
    assert len(logged) > 5


def assert_log(log: Path, run: str) -> None:
    """Every line is an object; the facts of a batch have a name, its run and its worker."""
    rows = []
    for line in log.read_text(encoding="utf-8").splitlines():
        if line.startswith("{"):
            rows.append(json.loads(line))
    done = [row for row in rows if row["event"] == "batch_done"]
    assert {row["batch"] for row in done} == {f"batch-{n:06d}" for n in range(6)}
    assert {(row["run"], row["worker"]) for row in done} == {(run, "w0@test")}
    begun = [row for row in rows if row["event"] == "batch_begins"]
    assert all(row["fence"] and row["attempt"] == 1 and row["prompts"] == 10 for row in begun)
    assert not [row for row in rows if row["event"] == "rejected"], "they have a file of their own"


def assert_told(receiver: WebhookReceiver, notices: Path, run: str, accepted: int) -> None:
    [row] = [got.row for got in receiver.requests]
    assert (row["event"], row["run"], row["accepted"]) == ("run_finished", run, accepted)
    [line] = notices.read_text().splitlines()
    assert json.loads(line)["id"] == row["id"]


def assert_no_secret(fleet: FleetHarness, folder: Path, seen: dict[str, bytes]) -> None:
    """No credential of the test stands in anything that it produced, however spelt."""
    everything = list(seen.items()) + list(files(folder)) + list(objects(fleet.blobs))
    with redis.Redis.from_url(fleet.settings.broker_url()) as client:
        everything += list(redis_keys(client))
    assert len(everything) > 40
    assert sum(len(body) for _, body in everything) > 100_000
    wanted = {way for secret in SECRETS for way in spellings(secret)}
    leaks = [(where, way) for where, body in everything for way in wanted if way in body]
    assert leaks == []


def test_a_worker_whose_metrics_port_is_taken_works_all_the_same(
    settings: Settings, tmp_path: Path, tiny_model: Path
) -> None:
    with WebhookReceiver() as other:
        port = int(other.url.split(":")[2].split("/")[0])
        own = settings.model_copy(update={"metrics_port": port, "sweep_s": 0.5})
        profile = emulated_profile(tmp_path, model_dir=tiny_model, lengths="fixed:20")
        with FleetHarness(own, profile, tmp_path) as fleet:
            fleet.enqueue("dark", prompts_file(tmp_path / "p.jsonl", 8))
            worker = fleet.start("w0")
            fleet.wait_finished("dark")
            fleet.oracle("dark")
            assert "no metrics from this worker" in worker.log.read_text()
            assert os.path.exists(f"/proc/{worker.process.pid}")


def test_an_engine_lost_for_good_is_told_though_the_worker_leaves(
    settings: Settings, tmp_path: Path, tiny_model: Path
) -> None:
    path = tmp_path / "notices.jsonl"
    own = settings.model_copy(
        update={"engine_restarts": 0, "notify_file": str(path), "sweep_s": 0.5, "lease_ttl_s": 3.0}
    )
    profile = emulated_profile(tmp_path, model_dir=tiny_model, lengths="fixed:400", token_ms=10)
    with FleetHarness(own, profile, tmp_path) as fleet:
        worker = fleet.start("w0")
        engine = next(p for p in worker.family() if is_emulator(p))
        engine.kill()
        assert worker.process.wait(WAIT_S) == 70
        [row] = [json.loads(line) for line in path.read_text().splitlines()]
        assert (row["event"], row["worker"]) == ("engine_lost", worker.name)
        fleet.workers.clear()
        fleet.assert_no_orphans()
