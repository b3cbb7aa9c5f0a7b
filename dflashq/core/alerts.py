"""What a person is told of, derived from how runs and workers are. Pure."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dflashq.core.model import canonical_json

PAUSED, FINISHED = "run_paused", "run_finished"
DEAD_BATCH, ENGINE_LOST, ENGINE_SICK = "batch_dead", "engine_lost", "engine_sick"
PAUSE_NAME = "paused"
EVENTS = (PAUSED, FINISHED, DEAD_BATCH, ENGINE_LOST, ENGINE_SICK)
ABOUT_WORKERS = (ENGINE_LOST, ENGINE_SICK)


@dataclass(frozen=True, slots=True)
class Alert:
    """One thing to tell once. `about` (a run or a worker) and `name` are its identity."""

    event: str
    about: str
    name: str
    sentence: str
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """The same at every try, so that a receiver can drop a second copy."""
        return hashlib.sha256(f"{self.about}\0{self.name}".encode()).hexdigest()[:32]

    def to_json(self, at: str) -> dict[str, Any]:
        """The body; `text` is what chat services show."""
        return {
            "id": self.id,
            "event": self.event,
            "about": self.about,
            "at": at,
            "text": f"dflashq: {self.sentence}",
            "sentence": self.sentence,
            **self.details,
        }


def paused(run: str, reason: str) -> Alert:
    """A run that stands still; its name is free again once the run is active."""
    why = f": {reason}" if reason else ""
    return Alert(
        PAUSED, run, PAUSE_NAME, f"run {run} is paused{why}", {"run": run, "reason": reason}
    )


def finished(run: str, sentence: str, counts: Mapping[str, int]) -> Alert:
    """Nothing is left to do; a run that grew or was revived finishes again, with other counts."""
    name = f"finished:{counts['done']}:{counts['dead']}"
    return Alert(FINISHED, run, name, f"run {run} is finished: {sentence}", {"run": run, **counts})


def dead_batch(run: str, batch: str, reason: str, died_ms: int, then: str) -> Alert:
    """A batch whose attempts are spent; dying again after a revival is told again.

    `then` says what becomes of the run, and how the batch is revived.
    """
    return Alert(
        DEAD_BATCH,
        run,
        f"dead:{batch}:{died_ms}",
        f"{run}/{batch} is dead: {reason}. {then}",
        {"run": run, "batch": batch, "reason": reason},
    )


def engine_failed(worker: str, reason: str, boot: str) -> Alert:
    """A worker whose engine is beyond repair; it has handed its batches back.

    The same boot that falls silent afterwards is no second notice.
    """
    return Alert(
        ENGINE_LOST,
        worker,
        f"engine:{boot}",
        f"worker {worker} lost its engine for good and ends: {reason}",
        {"worker": worker, "reason": reason},
    )


def worker_silent(worker: str, host: str, silent_s: int, boot: str) -> Alert:
    """A worker that fell silent without a word: killed, or its host is gone, and its engine too."""
    return Alert(
        ENGINE_LOST,
        worker,
        f"engine:{boot}",
        f"worker {worker} on {host} has been silent for {silent_s} s: its batches go to others. "
        "See whether the host is up, and start the worker again",
        {"worker": worker, "host": host, "silent_s": silent_s},
    )


def engine_sick(worker: str, boot: str, reason: str, since_ms: int) -> Alert:
    """A worker whose engine answers with errors only; told once an episode, begun `since_ms`."""
    return Alert(
        ENGINE_SICK,
        worker,
        f"sick:{boot}:{since_ms}",
        f"the engine of worker {worker} is sick: {reason}. The worker tries it again and "
        "restarts it by itself; if this stays, run `dflashq doctor` on that host",
        {"worker": worker, "reason": reason},
    )


def body_of(notice: Alert, at: str) -> bytes:
    """The bytes that are sent and signed."""
    return canonical_json(notice.to_json(at))


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """`sha256=HEX` over `TIMESTAMP.BODY`, so that an old request cannot be sent again."""
    signed = timestamp.encode() + b"." + body
    return "sha256=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()
