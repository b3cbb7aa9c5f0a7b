"""What the chaos sees of the ledger all the time: kept generations, done batches, lost leases."""

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
    """A lease that a fault took away: when it was free again, and when it had a new holder."""

    run: str
    batch: str
    fence: str
    began: float
    freed: float | None = None
    ended: float | None = None


@dataclass(slots=True)
class ObservedLeases:
    """`kept`: when each generation was first seen in the ledger, by the hash of its prompt.

    What is seen there is on disk: Redis answers nobody before its log is synced. `done`: when
    each batch was first seen in the done-set.
    """

    kept: dict[str, float] = field(default_factory=dict)
    done: dict[tuple[str, str], float] = field(default_factory=dict)
    losses: list[Loss] = field(default_factory=list)
    samples: int = 0


class Watch:
    """Reads the ledger every 0.3 s in a thread of its own; a context manager."""

    def __init__(self, settings: Settings) -> None:
        self.seen = ObservedLeases()
        self.runs: dict[str, list[str]] = {}
        self._redis: Any = connect(settings)
        self._fields: set[tuple[str, str, bytes]] = set()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()
        self._redis.close()

    def lost(self, worker: str) -> None:
        """A fault takes this worker's leases away now."""
        now = time.time()
        held = self.held(worker)
        with self._lock:
            self.seen.losses += [Loss(run, batch, fence, now) for run, batch, fence in held]

    def held(self, worker: str) -> set[Held]:
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
                    continue  # the chaos is at Redis just now
            self.seen.samples += 1

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
            self.seen.done.setdefault((run, batch), now)
        for loss in self.seen.losses:
            if loss.run == run and loss.ended is None:
                fence = held.get(loss.batch, ("", ""))[0]
                if fence != loss.fence:
                    loss.freed = loss.freed or now
                    loss.ended = now if fence or loss.batch in done else None
        for batch in batches:
            if batch not in done:
                self._look_at_kept(run, batch)
        if len(done) == len(batches):
            del self.runs[run]

    def _look_at_kept(self, run: str, batch: str) -> None:
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
                self.seen.kept.setdefault(prompt_hash(row["prompt_ids"]), now)
