"""Domains of a run, counted over a spread of its batches: prompts, accepted, tokens."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

from dflashq.blobs import commits, runs
from dflashq.blobs.s3 import Blobs
from dflashq.core import codec
from dflashq.core.errors import DflashqError
from dflashq.ledger.monitor_store import MonitorStore
from dflashq.operations.monitoring.sample_cache import read_text
from dflashq.operations.monitoring.snapshot import ObservedRun
from dflashq.system.threads import OneShotThread

log = logging.getLogger(__name__)

SPREAD, EVERY_S = 16, 300.0
UNNAMED = "(none)"


def spread(names: Sequence[str], count: int = SPREAD) -> list[str]:
    """At most `count` names, evenly over the sequence, its ends among them."""
    if len(names) <= count:
        return list(names)
    step = (len(names) - 1) / (count - 1)
    return [names[round(n * step)] for n in range(count)]


def count_domains(blobs: Blobs, run: str, done: Sequence[str]) -> dict[str, Any]:
    """The shares of domains in the prompts and, over some done batches, in the samples.

    Blocks on S3: reads at most 16 prompt objects and 16 commits. `whole` says that every batch
    was read. `{"prompts_of", "samples_of", "whole", "domains": [{domain, prompts, accepted,
    rejected, tokens}]}`; counts are of the batches that were read.
    """
    record = runs.read_run(blobs, run)
    by_name = {batch.name: batch for batch in record.batches}
    chosen = spread(list(by_name))
    asked: Counter[str] = Counter()
    for name in chosen:
        asked.update(p.domain or UNNAMED for p in runs.read_prompts(blobs, by_name[name]))
    looked_at = spread([name for name in done if name in by_name])
    counts: dict[str, Counter[str]] = {}
    for name in looked_at:
        _count_commit(blobs, run, name, record.fingerprint, counts)
    rows = [
        {"domain": domain, "prompts": asked.get(domain, 0), **_row(counts.get(domain, Counter()))}
        for domain in sorted(asked.keys() | counts.keys(), key=lambda d: (-asked.get(d, 0), d))
    ]
    return {
        "prompts_of": len(chosen),
        "samples_of": len(looked_at),
        "batches": len(by_name),
        "whole": len(chosen) == len(by_name) and len(looked_at) == len(done),
        "domains": rows,
    }


def _row(counted: Counter[str]) -> dict[str, int]:
    return {name: counted.get(name, 0) for name in ("accepted", "rejected", "tokens")}


def _count_commit(
    blobs: Blobs, run: str, batch: str, fingerprint: str, counts: dict[str, Counter[str]]
) -> None:
    ref = commits.read_reference(blobs, run, batch, fingerprint)
    if ref is None:
        return
    for key, verdict in ((ref.key, "accepted"), (ref.rejected_key, "rejected")):
        if key is None:
            continue
        for line in codec.decompress(blobs.get(key).body).split(b"\n"):
            if line:
                row = read_text(line)
                domain = counts.setdefault(row.get("domain") or UNNAMED, Counter())
                domain[verdict] += 1
                domain["tokens"] += row["usage"]["completion_tokens"]


class DomainCount:
    """The domains of every run, counted now and then in a thread of its own.

    The leading monitor counts, and notes it in Redis; the others read that.
    """

    def __init__(self, blobs: Blobs, store: MonitorStore) -> None:
        self._blobs, self._store = blobs, store
        self._known: dict[str, dict[str, Any]] = {}
        self._last: dict[str, tuple[float, int]] = {}
        self._counting: OneShotThread | None = None

    def of(self, run: str) -> dict[str, Any] | None:
        """What was counted last; None before that."""
        return self._known.get(run)

    def keep_up(self, run: str, one: ObservedRun, now: float, *, lead: bool) -> None:
        """Count anew when more batches are done than last time. Blocks on Redis for a moment."""
        at, done = self._last.get(run, (0.0, -1))
        if done == one.view.done or (done >= 0 and now - at < EVERY_S and not one.status.finished):
            return
        noted = self._store.domains(run)
        if noted is not None:
            self._known[run] = noted["counted"]
        if not lead or (noted is not None and noted["done"] == one.view.done):
            self._last[run] = (now, one.view.done)
            return
        if self._counting is not None and self._counting.alive:
            return
        self._last[run] = (now, one.view.done)
        names = [batch.name for batch in one.batches if batch.state == "done"]
        work = partial(self._count, run, names, one.view.done)
        self._counting = OneShotThread("domains", work)
        self._counting.start()

    def _count(self, run: str, names: list[str], done: int) -> None:
        try:
            counted = count_domains(self._blobs, run, names)
            self._store.note_domains(run, {"done": done, "counted": counted})
        except DflashqError as exc:
            log.warning("the domains of run %s were not counted: %s", run, exc)
            return
        self._known[run] = counted
