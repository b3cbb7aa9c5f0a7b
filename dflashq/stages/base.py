"""What a stage is to the runner: its work on one leased batch, and how it stands as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from dflashq.core.model import ObjectRef
from dflashq.core.stage_spec import StageSpec
from dflashq.stages.attempt import Attempt


class Stage(Protocol):
    """What a worker does to one leased batch; one instance a worker, called from many threads.

    Only `run`, `flush` and `wait_idle` block.
    """

    spec: StageSpec

    def run(self, attempt: Attempt, another_worker: Callable[[], bool]) -> ObjectRef:
        """Commit the batch, or adopt the commit that is there; blocks until then.

        `another_worker()` says, without blocking, whether another worker could take the batch.
        StoppedError (HandOverError when another worker should have it) and LeaseLostError when the
        attempt is over, ConflictError when the commit object is not ours, EngineMismatchError when
        this worker's engine may not work on the run; any other error: the attempt failed.
        """

    def enter(self, attempt: Attempt) -> None:
        """An attempt begins."""

    def leave(self, attempt: Attempt) -> None:
        """An attempt has ended; nothing more of it may be kept."""

    def flush(self, attempt: Attempt, timeout_s: float) -> bool:
        """Block until finished work is on disk; False when time ran out first."""

    def hold(self, attempt: Attempt) -> int:
        """Hold finished work in memory, since the ledger was wiped; returns how many entries."""

    def recoverable(self) -> list[tuple[str, str]]:
        """(run, batch) of what is held in memory."""

    def drop_held(self, run: str, batch: str) -> None:
        """Forget what is held of a batch that was committed elsewhere."""

    @property
    def store_full(self) -> bool:
        """Whether finished work finds no room: only a commit makes some, so nothing is released."""

    @property
    def sick(self) -> str:
        """Why a well worker should have this one's batches; empty while this one does its work."""

    @property
    def idle(self) -> bool:
        """Whether nothing is in flight."""

    def stop_admission(self, reason: str) -> None:
        """Begin nothing new while `reason` stands; what is in flight goes on."""

    def resume_admission(self, reason: str) -> None:
        """Take `reason` back."""

    def wait_idle(self, timeout_s: float) -> bool:
        """Block until nothing is in flight; False when time ran out first."""

    def note_error(self, sentence: str) -> None:
        """Remember what went wrong last, for people who look at the worker."""


class UnkeptStage:
    """A base for stages that do a batch in one go: nothing is held, kept or admitted in parts."""

    def enter(self, attempt: Attempt) -> None:
        """Nothing to prepare."""

    def leave(self, attempt: Attempt) -> None:
        """Nothing to tidy up."""

    def flush(self, attempt: Attempt, timeout_s: float) -> bool:
        """True: nothing waits to be written."""
        return True

    def hold(self, attempt: Attempt) -> int:
        """0: an attempt that is lost is done anew."""
        return 0

    def recoverable(self) -> list[tuple[str, str]]:
        """Nothing is held."""
        return []

    def drop_held(self, run: str, batch: str) -> None:
        """Nothing is held."""

    @property
    def store_full(self) -> bool:
        """False: nothing is stored but commits."""
        return False

    @property
    def sick(self) -> str:
        """Empty: there is no engine that could be sick."""
        return ""

    @property
    def idle(self) -> bool:
        """True: an attempt is stopped between two steps, so there is nothing to wait for."""
        return True

    def stop_admission(self, reason: str) -> None:
        """Nothing is admitted in parts; the runner claims no more by itself."""

    def resume_admission(self, reason: str) -> None:
        """Nothing is admitted in parts."""

    def wait_idle(self, timeout_s: float) -> bool:
        """True: there is nothing to wait for."""
        return True

    def note_error(self, sentence: str) -> None:
        """The log and the batch's story have it; there is no row of this worker to show it in."""
