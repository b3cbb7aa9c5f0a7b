"""A monitor to test against, and a ledger of any size to show."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flask.testing import FlaskClient
from pydantic import SecretStr
from waitress.server import create_server

from dflashq.blobs.s3 import Blobs
from dflashq.config import Settings
from dflashq.core import keys
from dflashq.core.model import ObjectRef
from dflashq.ledger import Hints, Ledger
from dflashq.ledger.monitor_store import MonitorStore
from dflashq.operations.monitoring.actions import RunActions
from dflashq.operations.monitoring.poller import LedgerPoller
from dflashq.operations.monitoring.prometheus import render
from dflashq.operations.monitoring.sample_cache import SampleCache
from dflashq.system.gc_tuning import freeze_heap
from dflashq.web.app import THREADS, create_app
from dflashq.web.auth import Tokens
from dflashq.web.context import MonitorContext

TOKEN = "a-token-of-the-tests-0123456789"
FINGERPRINT = "f" * 64
REASONS = ("truncated", "looping", "no_answer", "stub")


class MonitorFixture:
    """One monitor without its thread: a test says when it looks and writes."""

    def __init__(self, settings: Settings, token: str = "") -> None:
        self.ledger, self.blobs = Ledger(settings), Blobs(settings)
        self.poller = LedgerPoller(settings, self.ledger, self.blobs)
        self.store = MonitorStore(settings)
        actions = RunActions(self.ledger, self.blobs, Hints(settings), self.poller.store)
        self.monitor = MonitorContext(
            self.poller, SampleCache(self.blobs), actions, lambda: render(self.ledger)
        )
        self.app = create_app(self.monitor, Tokens(SecretStr(token) if token else None))
        self.client: FlaskClient = self.app.test_client()

    def look(self) -> None:
        """One turn of the poller's thread."""
        self.poller.poll_and_record()

    def get(self, path: str, **headers: str) -> Any:
        """The JSON of a GET that must succeed."""
        response = self.client.get(f"/api{path}", headers=headers)
        assert response.status_code == 200, (path, response.status_code, response.text)
        return response.json

    def post(self, path: str, body: dict[str, Any], csrf: str | None = None) -> Any:
        """The response of a POST as our page sends it."""
        token = self.get("/session")["csrf"] if csrf is None else csrf
        return self.client.post(f"/api{path}", json=body, headers={"X-CSRF-Token": token})


@contextmanager
def serving(stage: MonitorFixture) -> Iterator[str]:
    """The stage behind the real server, its poller at work; the address."""
    server = create_server(stage.app, host="127.0.0.1", port=0, threads=THREADS)
    thread = threading.Thread(target=server.run, daemon=True)
    freeze_heap()
    stage.poller.start()
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.effective_port}"
    finally:
        stage.poller.stop()
        server.close()
        server.task_dispatcher.shutdown()


def reference(run: str, batch: str, counts: dict[str, int]) -> ObjectRef:
    key = keys.completions_object(run, batch)
    return ObjectRef(key, "0" * 64, FINGERPRINT, counts)


def counts_of(number: int, prompts: int = 1000) -> dict[str, int]:
    """What a done batch counts, by its number."""
    chance = random.Random(number)
    rejects = {f"rejected_{r}": chance.randrange(12) for r in REASONS[: 1 + number % 4]}
    accepted = prompts - sum(rejects.values())
    tokens = prompts * chance.randrange(2000, 6000)
    return {"prompts": prompts, "accepted": accepted, "output_tokens": tokens, **rejects}


def fill(ledger: Ledger, run: str, batches: int, done: int, workers: int, dead: int) -> None:
    """A run in the middle of its work, made by the ledger's own verbs."""
    names = [keys.batch_name(number) for number in range(batches)]
    ledger.register(run, FINGERPRINT, "generate.m", batches * 1000, batches)
    ledger.add(run, names)
    for number, name in enumerate(names[:done]):
        counts = counts_of(number)
        assert ledger.adopt(run, name, reference(run, name, counts), counts)
    for name in names[done : done + dead]:
        claim = ledger.claim(run, name, "w", 60, only=True)
        assert claim.lease is not None
        ledger.begin(claim.lease)
        assert ledger.kill(claim.lease, "conflict: another object lies at its key")
    for number in range(workers):
        held = []
        for _ in range(2):
            claim = ledger.claim(run, names[done + dead], worker_name(number), 3600)
            if claim.lease is not None:
                ledger.begin(claim.lease)
                held.append(f"{run}/{claim.lease.batch}")
        announce(ledger, number, held)


def worker_name(number: int) -> str:
    return f"gpu{number % 8}@host-{number // 8:03d}"


def announce(ledger: Ledger, number: int, batches: list[str], **more: Any) -> None:
    row = {
        "host": f"host-{number // 8:03d}",
        "pid": 1000 + number,
        "boot": f"host-{number // 8:03d}:{1000 + number}:0",
        "gpu": str(number % 8),
        "profile": "qwen3.6-27b-rtxpro6000",
        "engine": "ready",
        "restarts": number % 3,
        "output_tokens": 1_000_000 + number,
        "tokens_per_s": 1500.0 + number,
        "in_flight": 78,
        "limit": 80,
        "waiting": 12,
        "closed": [],
        "batches": batches,
        "queued": 2,
        "accept_length": 3.1,
        "kv_use": 0.71,
        "state_use": 0.0,
        "retractions": 0,
    }
    ledger.announce(worker_name(number), row | more)
