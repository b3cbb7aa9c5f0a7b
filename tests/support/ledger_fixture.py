"""A ledger on a real server, with the things a test wants to do to it."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any

from dflashq.config import Settings
from dflashq.core import keys
from dflashq.core.model import Generation, ObjectRef, Verdict
from dflashq.core.worker_identity import WorkerBoot
from dflashq.ledger import Lease, Ledger
from dflashq.ledger.connection import connect
from dflashq.ledger.kept_codec import encode_generation, generation_field, verdict_entry

TTL_S = 30.0
B1, B2, B3 = "batch-000001", "batch-000002", "batch-000003"


def generation(number: int = 1) -> Generation:
    return Generation([1, 2], [number, 9], "stop", 9)


def entries(*indexes: int) -> list[tuple[str, bytes]]:
    """One generation and one verdict an index, as a worker keeps them."""
    rows = []
    for index in indexes:
        rows += [
            (generation_field(index, 0), encode_generation(generation(index))),
            verdict_entry(index, Verdict()),
        ]
    return rows


def size(rows: list[tuple[str, bytes]]) -> int:
    return sum(len(name.encode()) + len(payload) for name, payload in rows)


def ref(batch: str, sha256: str = "a" * 64) -> ObjectRef:
    return ObjectRef(f"runs/r/completions/{batch}.jsonl.zst", sha256, "f" * 64, {"accepted": 1})


def boot(started_ms: int = 1, *, name: str = "w1", host: str = "5e6f7a8b-host-1") -> WorkerBoot:
    return WorkerBoot(name, host, started_ms, f"{started_ms:08x}")


@dataclass
class LedgerFixture:
    """One run of its own; `raw` is a plain client to look behind the ledger."""

    settings: Settings
    run: str = field(default_factory=lambda: f"run-{secrets.token_hex(6)}")

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.settings)
        self.raw: Any = connect(self.settings)

    def start(self, *batches: str) -> LedgerFixture:
        """Register the run and put its batches in the outbox."""
        assert self.ledger.register(self.run, "f" * 64, "q", 10, len(batches)) == "f" * 64
        assert self.ledger.add(self.run, batches) == len(batches)
        return self

    def key(self, part: str) -> str:
        return keys.redis_run(self.run, part)

    def lease(
        self, batch: str = "", worker: str = "w1", *, begin: bool = True, boot: str = ""
    ) -> Lease:
        claim = self.ledger.claim(self.run, batch, worker, TTL_S, boot=boot)
        assert claim.lease is not None, claim.why
        if begin:
            self.ledger.begin(claim.lease)
        return claim.lease

    def end_of(self, batch: str) -> float:
        """When a lease ends, in server ms; AssertionError when the batch is not leased."""
        score = self.raw.zscore(self.key("leased"), batch)
        assert score is not None, f"{batch} is not leased"
        return float(score)

    def silence(self, batch: str) -> None:
        """The lease is past its end, as if its holder had been silent for a ttl."""
        self.raw.zadd(self.key("leased"), {batch: 1})

    def states(self) -> dict[str, str]:
        """Where each batch is; AssertionError when one is in two places."""
        rows = self.ledger.batch_states(self.run)
        assert len({row.name for row in rows}) == len(rows), rows
        return {row.name: row.state for row in rows}

    def kept_bytes(self) -> int:
        return self.ledger.status(self.run).kept_bytes

    def picture(self) -> dict[str, Any]:
        """Everything that Redis holds of this run."""
        snapshot: dict[str, Any] = {}
        for key in sorted(self.raw.scan_iter(f"{keys.NAMESPACE}:{{{self.run}}}:*", count=1000)):
            kind = self.raw.type(key)
            snapshot[key.decode()] = (
                self.raw.hgetall(key)
                if kind == b"hash"
                else self.raw.zrange(key, 0, -1, withscores=True)
            )
        return snapshot
