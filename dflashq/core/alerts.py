"""The alerts for a person, with their sentences, bodies and signatures. Pure."""

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
    """An alert, to be sent once. `about` (a run or a worker) and `name` identify it."""

    event: str
    about: str
    name: str
    sentence: str
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """32 hex digits, the same at every try, so that a receiver can drop a second copy."""
        return hashlib.sha256(f"{self.about}\0{self.name}".encode()).hexdigest()[:32]

    def to_json(self, at: str) -> dict[str, Any]:
        """The body of the webhook; `at` is ISO 8601, `text` is what chat services show."""
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
    """A run was paused. Once it is active again, the next pause is a new alert."""
    why = f": {reason}" if reason else ""
    return Alert(
        PAUSED, run, PAUSE_NAME, f"run {run} is paused{why}", {"run": run, "reason": reason}
    )


def finished(run: str, sentence: str, counts: Mapping[str, int]) -> Alert:
    """A run finished. One that grew or was revived finishes again, with other counts."""
    name = f"finished:{counts['done']}:{counts['dead']}"
    return Alert(FINISHED, run, name, f"run {run} is finished: {sentence}", {"run": run, **counts})


def dead_batch(run: str, batch: str, reason: str, died_ms: int, then: str) -> Alert:
    """A batch died; dying again after a revival, at another `died_ms`, is a new alert.

    `then` is a sentence on what becomes of the run, and how the batch is revived.
    """
    return Alert(
        DEAD_BATCH,
        run,
        f"dead:{batch}:{died_ms}",
        f"{run}/{batch} is dead: {reason}. {then}",
        {"run": run, "batch": batch, "reason": reason},
    )


def engine_failed(worker: str, reason: str, boot: str) -> Alert:
    """A worker lost its engine for good; it has handed its batches back.

    When the same boot falls silent afterwards, that is no second alert.
    """
    return Alert(
        ENGINE_LOST,
        worker,
        f"engine:{boot}",
        f"worker {worker} lost its engine for good and ends: {reason}",
        {"worker": worker, "reason": reason},
    )


def worker_silent(worker: str, host: str, silent_s: int, boot: str) -> Alert:
    """A worker fell silent without ending in order: it was killed, or its host is gone."""
    return Alert(
        ENGINE_LOST,
        worker,
        f"engine:{boot}",
        f"worker {worker} on {host} has been silent for {silent_s} s: its batches go to others. "
        "See whether the host is up, and start the worker again",
        {"worker": worker, "host": host, "silent_s": silent_s},
    )


def engine_sick(worker: str, boot: str, reason: str, since_ms: int) -> Alert:
    """The engine of a worker answers with errors only, since `since_ms`; one alert an episode."""
    return Alert(
        ENGINE_SICK,
        worker,
        f"sick:{boot}:{since_ms}",
        f"the engine of worker {worker} is sick: {reason}. The worker tries it again and "
        "restarts it by itself; if this stays, run `dflashq doctor` on that host",
        {"worker": worker, "reason": reason},
    )


def body_of(alert: Alert, at: str) -> bytes:
    """The bytes that are sent and signed."""
    return canonical_json(alert.to_json(at))


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """`sha256=HEX`, the HMAC of `TIMESTAMP.BODY`: a receiver can refuse a repeated old request."""
    signed = timestamp.encode() + b"." + body
    return "sha256=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()
