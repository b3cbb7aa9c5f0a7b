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
from dflashq.core.states import BatchState
from dflashq.ledger.monitor_store import MonitorStore
from dflashq.operations.monitoring.sample_cache import read_text
from dflashq.operations.monitoring.snapshot import ObservedRun
from dflashq.system.threads import OneShotThread

log = logging.getLogger(__name__)

SPREAD = 16  # batches that are read, of each kind of object
EVERY_S = 300.0
UNNAMED = "(none)"


def spread(names: Sequence[str], count: int = SPREAD) -> list[str]:
    """At most `count` names, evenly over the sequence, with its first and its last."""
    if len(names) <= count:
        return list(names)
    step = (len(names) - 1) / (count - 1)
    return [names[round(n * step)] for n in range(count)]


def count_domains(blobs: Blobs, run: str, done: Sequence[str]) -> dict[str, Any]:
    """Count the domains of a run, in the prompts and in the samples of a spread of its batches.

    `done` names the done batches. `{"prompts_of", "samples_of", "batches", "whole", "domains":
    [{domain, prompts, accepted, rejected, tokens}]}`: of how many batches the prompts and the
    samples were read, how many there are, whether every one was read, and the counts of those that
    were; `tokens` are output tokens. Blocks on S3: reads at most 16 prompt objects and 16 commits.
    Safe to repeat. UnknownRunError, BlobError; ConflictError when an object is damaged.
    """
    record = runs.read_run(blobs, run)
    by_name = {batch.name: batch for batch in record.batches}
    chosen = spread(list(by_name))
    prompts: Counter[str] = Counter()
    for name in chosen:
        prompts.update(p.domain or UNNAMED for p in runs.read_prompts(blobs, by_name[name]))
    sampled = spread([name for name in done if name in by_name])
    counts: dict[str, Counter[str]] = {}
    for name in sampled:
        _count_commit(blobs, run, name, record.fingerprint, counts)
    rows = [
        {"domain": domain, "prompts": prompts[domain], **_row(counts.get(domain, Counter()))}
        for domain in sorted(prompts.keys() | counts.keys(), key=lambda d: (-prompts[d], d))
    ]
    return {
        "prompts_of": len(chosen),
        "samples_of": len(sampled),
        "batches": len(by_name),
        "whole": len(chosen) == len(by_name) and len(sampled) == len(done),
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
    objects = [("accepted", ref.key, ref.sha256)]
    if ref.rejected_key is not None and ref.rejected_sha256 is not None:
        objects.append(("rejected", ref.rejected_key, ref.rejected_sha256))
    for verdict, key, sha256 in objects:
        body = commits.checked_body(blobs, key, sha256)
        for line in codec.decompress(body).split(b"\n"):
            if line:
                row = read_text(line)
                domain = counts.setdefault(row.get("domain") or UNNAMED, Counter())
                domain[verdict] += 1
                domain["tokens"] += row["usage"]["completion_tokens"]


class DomainCount:
    """The domains of every run, counted again as it grows, in a thread of its own.

    The leading monitor counts and saves the result in Redis, where the others read it.
    """

    def __init__(self, blobs: Blobs, store: MonitorStore) -> None:
        self._blobs, self._store = blobs, store
        self._known: dict[str, dict[str, Any]] = {}
        self._last: dict[str, tuple[float, int]] = {}
        self._counting: OneShotThread | None = None

    def of(self, run: str) -> dict[str, Any] | None:
        """What `count_domains` returned last; None before the first count. Does not block."""
        return self._known.get(run)

    def keep_up(self, run: str, observed: ObservedRun, now: float, *, lead: bool) -> None:
        """Start a count when more batches are done than at the last one; read it without the lead.

        `now` is in monotonic seconds. Blocks on Redis, not for the count. Safe to repeat.
        LedgerError.
        """
        at, done_then = self._last.get(run, (0.0, -1))
        done = observed.view.done
        recent = done_then >= 0 and now - at < EVERY_S and not observed.status.finished
        if done_then == done or recent:
            return
        saved = self._store.domains(run)
        if saved is not None:
            self._known[run] = saved["counted"]
        if not lead or (saved is not None and saved["done"] == done):
            self._last[run] = (now, done)
            return
        if self._counting is not None and self._counting.alive:
            return
        self._last[run] = (now, done)
        names = [b.name for b in observed.batches if b.state == BatchState.DONE]
        work = partial(self._count, run, names, done)
        self._counting = OneShotThread("domains", work)
        self._counting.start()

    def _count(self, run: str, names: list[str], done: int) -> None:
        try:
            counted = count_domains(self._blobs, run, names)
            self._store.save_domains(run, {"done": done, "counted": counted})
        except DflashqError as exc:
            log.warning("the domains of run %s were not counted: %s", run, exc)
            return
        self._known[run] = counted
