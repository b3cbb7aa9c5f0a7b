"""The states of a run and of a batch, with the words that stand in Redis, on S3 and in the API."""

from __future__ import annotations

from enum import StrEnum


class RunState(StrEnum):
    """What a person, or a guard, has decided about a run.

    That a run is finished is no state: it follows from the counts of its batches.
    """

    ACTIVE = "active"
    PAUSED = "paused"
    CANCELLED = "cancelled"
    # Never stored: what the ledger answers about a run that it does not have.
    UNKNOWN = "unknown"


class BatchState(StrEnum):
    """Where a batch of a run is."""

    PENDING = "pending"
    # Never stored: a pending batch that may not be claimed before the canary has passed.
    WAITING = "waiting"
    LEASED = "leased"
    DONE = "done"
    DEAD = "dead"
