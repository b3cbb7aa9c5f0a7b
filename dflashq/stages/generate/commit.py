"""Committing a batch: upload, then complete; or adopt what is there already."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

from dflashq.blobs.commits import Commit, read_commit, write_commit
from dflashq.blobs.s3 import Blobs
from dflashq.core import codec
from dflashq.core.model import ObjectRef, Verdict, counters
from dflashq.ledger import Ledger
from dflashq.stages.attempt import Attempt
from dflashq.stages.generate.row_builder import RowError
from dflashq.stages.generate.settled_prompt import SettledPrompt

log = logging.getLogger(__name__)


def counts_of(settled: Iterable[SettledPrompt]) -> dict[str, int]:
    """The counts of a batch: prompts, accepted, rejected_REASON, generations, tokens."""
    counts: Counter[str] = Counter()
    for one in settled:
        counts["prompts"] += 1
        counts["accepted" if one.reason is None else f"rejected_{one.reason}"] += 1
        counts.update(one.counts)
    return dict(counts)


def encoded(
    settled: list[SettledPrompt], line: Callable[[SettledPrompt], bytes]
) -> tuple[list[SettledPrompt], bytes, bytes | None]:
    """(the verdicts, the accepted rows, the rejected ones or None), each in one zstd frame.

    A prompt whose row cannot be made is rejected, and costs the others nothing.
    """
    rows = settled
    while True:
        good = [one for one in rows if one.verdict.accepted]
        bad = [one for one in rows if not one.verdict.accepted]
        try:
            accepted = codec.compress_all(map(line, good), codec.BRISK)
        except RowError as exc:
            log.error("no row can be made of an answer: index=%d: %s", exc.index, exc)
            verdict = Verdict("internal_error", str(exc))
            rows = [replace(r, verdict=verdict) if r.index == exc.index else r for r in rows]
            continue
        return rows, accepted, codec.compress_all(map(line, bad), codec.BRISK) if bad else None


class Committer:
    """Brings the settled prompts of one attempt to their committed place.

    `superseded` counts, by reason, the rejected rows that this revision replaces.
    Every method blocks, waits out outages, and raises StoppedError or LeaseLostError when the
    attempt is over, ConflictError when the commit object is not ours.
    """

    def __init__(
        self,
        ledger: Ledger,
        blobs: Blobs,
        attempt: Attempt,
        fingerprint: str,
        superseded: dict[str, int],
    ) -> None:
        self._ledger, self._blobs, self._attempt = ledger, blobs, attempt
        self._fingerprint, self._superseded = fingerprint, superseded

    def commit(
        self, settled: list[SettledPrompt], line: Callable[[SettledPrompt], bytes]
    ) -> ObjectRef:
        """Upload and complete; whoever committed first, the object on S3 is what counts.

        `line` gives the encoded row of a prompt; one that cannot be made (RowError) rejects it.
        """
        lease = self._attempt.lease
        rows, accepted, rejected = encoded(sorted(settled, key=lambda one: one.index), line)
        ref = self._attempt.retry_until_stopped(
            lambda: write_commit(
                self._blobs,
                lease.run,
                lease.batch,
                self._fingerprint,
                accepted,
                rejected,
                counts_of(rows),
            ),
            "uploading",
        )
        if ref is None:
            return self.adopt({one.index for one in rows})
        return self._complete(ref)

    def adopt(self, indexes: set[int]) -> ObjectRef:
        """Complete with the object that is on S3 already, checked whole."""
        lease = self._attempt.lease
        found: Commit = self._attempt.retry_until_stopped(
            lambda: read_commit(self._blobs, lease.run, lease.batch, self._fingerprint, indexes),
            "reading the committed object",
        )
        log.info("adopted: run=%s batch=%s object=%s", lease.run, lease.batch, found.ref.key)
        return self._complete(found.ref)

    def _complete(self, ref: ObjectRef) -> ObjectRef:
        added = counters(ref, self._superseded)
        self._attempt.retry_until_stopped(
            lambda: self._ledger.complete(self._attempt.lease, ref, added), "completing"
        )
        return ref
