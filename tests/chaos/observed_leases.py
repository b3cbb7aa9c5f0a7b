"""Watches the ledger during a chaos: kept generations, done batches, lost leases."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import redis

from dflashq.config import Settings
from dflashq.core import codec, keys
from dflashq.core.errors import LedgerError
from dflashq.ledger.connection import connect
from tests.support.engine_emulator import prompt_hash

PERIOD_S = 0.3
Held = tuple[str, str, str]  # run, batch and fence of a lease


@dataclass(slots=True)
class Loss:
    """A lease that a fault took away.

    `began` is when the fault began, `freed` when the lease was free again, `ended` when it had a
    new holder or its batch was done: seconds since the epoch, None before that.
    """

    run: str
    batch: str
    fence: str
    began: float
    freed: float | None = None
    ended: float | None = None


@dataclass(slots=True)
class ObservedLeases:
    """What was seen in the ledger, with the first moment of each in seconds since the epoch.

    `kept` by the hash of the prompt: what a reader sees is on disk, since Redis answers nobody
    before its log is synced. `done` by run and batch. `samples` counts the rounds of reading.
    """

    kept: dict[str, float] = field(default_factory=dict)
    done: dict[tuple[str, str], float] = field(default_factory=dict)
    losses: list[Loss] = field(default_factory=list)
    samples: int = 0


class LeaseWatcher:
    """Reads the ledger every 0.3 s in a thread of its own; a context manager.

    `runs` are the batches of each run that is to be watched; a finished run is taken out.
    """

    def __init__(self, settings: Settings) -> None:
        self.observed = ObservedLeases()
        self.runs: dict[str, list[str]] = {}
        self._redis: Any = connect(settings)
        self._fields: set[tuple[str, str, bytes]] = set()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="lease-watcher", daemon=True)

    def __enter__(self) -> LeaseWatcher:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()
        self._redis.close()

    def record_loss(self, worker: str) -> None:
        """Note that a fault takes the leases of this worker away now."""
        now = time.time()
        held = self.held_leases(worker)
        with self._lock:
            self.observed.losses += [Loss(run, batch, fence, now) for run, batch, fence in held]

    def held_leases(self, worker: str) -> set[Held]:
        """The leases that this worker holds now."""
        with self._lock:
            return {
                (run, batch, fence)
                for run in self.runs
                for batch, (fence, owner) in self._leases(run).items()
                if owner == worker
            }

    def _watch(self) -> None:
        while not self._stop.wait(PERIOD_S):
            for run, batches in list(self.runs.items()):
                try:
                    with self._lock:
                        self._sample(run, batches)
                except (LedgerError, redis.RedisError):
                    continue  # a fault is at Redis just now
            self.observed.samples += 1

    def _leases(self, run: str) -> dict[str, tuple[str, str]]:
        """Fence and worker by leased batch."""
        try:
            rows = self._redis.hgetall(keys.redis_run(run, "leases"))
        except redis.RedisError:
            return {}
        text = {k.decode(): v.decode() for k, v in rows.items()}
        return {b: (f, text.get(f"{b}:worker", "")) for b, f in text.items() if ":" not in b}

    def _sample(self, run: str, batches: list[str]) -> None:
        held = self._leases(run)
        done = {name.decode() for name in self._redis.hkeys(keys.redis_run(run, "done"))}
        now = time.time()
        for batch in done:
            self.observed.done.setdefault((run, batch), now)
        for loss in self.observed.losses:
            if loss.run == run and loss.ended is None:
                fence = held.get(loss.batch, ("", ""))[0]
                if fence != loss.fence:
                    loss.freed = loss.freed or now
                    loss.ended = now if fence or loss.batch in done else None
        for batch in batches:
            if batch not in done:
                self._sample_kept(run, batch)
        if len(done) == len(batches):
            del self.runs[run]

    def _sample_kept(self, run: str, batch: str) -> None:
        key = keys.redis_run(run, f"kept:{batch}")
        new = [
            name
            for name in self._redis.hkeys(key)
            if name.rpartition(b":")[2].isdigit() and (run, batch, name) not in self._fields
        ]
        if not new:
            return
        now = time.time()
        for name, payload in zip(new, self._redis.hmget(key, new), strict=True):
            if payload is not None:
                row = json.loads(codec.decompress(payload))
                self._fields.add((run, batch, name))
                self.observed.kept.setdefault(prompt_hash(row["prompt_ids"]), now)
