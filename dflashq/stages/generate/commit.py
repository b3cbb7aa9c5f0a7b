"""The commit of a batch: upload, then complete; or adopt an object that was committed before."""

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
    for prompt in settled:
        counts["prompts"] += 1
        counts["accepted" if prompt.reason is None else f"rejected_{prompt.reason}"] += 1
        counts.update(prompt.counts)
    return dict(counts)


def encoded(
    settled: list[SettledPrompt], line: Callable[[SettledPrompt], bytes]
) -> tuple[list[SettledPrompt], bytes, bytes | None]:
    """The settled prompts, their accepted rows, and their rejected rows or None.

    The rows are each one zstd frame. A prompt whose row cannot be composed is rejected instead: the
    returned prompts have their final verdicts.
    """
    while True:
        accepted = [prompt for prompt in settled if prompt.verdict.accepted]
        rejected = [prompt for prompt in settled if not prompt.verdict.accepted]
        try:
            accepted_body = codec.compress_all(map(line, accepted), codec.FAST_LEVEL)
        except RowError as exc:
            log.error("no row can be made of an answer: index=%d: %s", exc.index, exc)
            verdict = Verdict("internal_error", str(exc))
            settled = [
                replace(prompt, verdict=verdict) if prompt.index == exc.index else prompt
                for prompt in settled
            ]
            continue
        if not rejected:
            return settled, accepted_body, None
        return settled, accepted_body, codec.compress_all(map(line, rejected), codec.FAST_LEVEL)


class Committer:
    """Commits the settled prompts of one attempt.

    `superseded` counts, by reason, the rejected rows that this revision replaces. Every method
    blocks, waits until an outage is over, and raises StoppedError or LeaseLostError when the
    attempt is over, ConflictError when the commit object is not this run's.
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
        """Upload and complete; an object that another attempt committed first is adopted instead.

        `line` gives the encoded row of a prompt; the prompt is rejected when that raises RowError.
        """
        lease = self._attempt.lease
        rows, accepted, rejected = encoded(sorted(settled, key=lambda prompt: prompt.index), line)
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
            return self.adopt({prompt.index for prompt in rows})
        return self._complete(ref)

    def adopt(self, indexes: set[int]) -> ObjectRef:
        """Complete with the object that is on S3, after reading and checking all of it."""
        lease = self._attempt.lease
        commit: Commit = self._attempt.retry_until_stopped(
            lambda: read_commit(self._blobs, lease.run, lease.batch, self._fingerprint, indexes),
            "reading the committed object",
        )
        log.info("adopted: run=%s batch=%s object=%s", lease.run, lease.batch, commit.ref.key)
        return self._complete(commit.ref)

    def _complete(self, ref: ObjectRef) -> ObjectRef:
        added = counters(ref, self._superseded)
        self._attempt.retry_until_stopped(
            lambda: self._ledger.complete(self._attempt.lease, ref, added), "completing"
        )
        return ref
