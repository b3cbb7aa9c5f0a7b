"""What the ledger answers with."""

from __future__ import annotations

from dataclasses import dataclass, field

from dflashq.core.model import Generation, Verdict
from dflashq.core.stage_spec import GENERATE
from dflashq.core.states import BatchState, RunState


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to do a stage's work on a batch until its end.

    `fence` is compared whole by every verb.
    """

    run: str
    batch: str
    fence: str
    worker: str
    attempts: int
    stage: str = GENERATE.name


@dataclass(frozen=True, slots=True)
class Claim:
    """A lease, or why there is none.

    `why`: unknown, paused, cancelled, idle, taken, done, canary, avoided, newer format.
    """

    lease: Lease | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Failure:
    """What an engine met again and again on one prompt, and whose engine that was."""

    worker: str
    words: str


@dataclass(slots=True)
class Kept:
    """Work of earlier attempts on a batch: by (index, slot), and verdicts by index.

    `strikes` counts, by index, the engine deaths while that prompt was in flight; `failures` are
    the prompts on which an engine kept failing while it answered others; `entries` is all of it as
    it is stored, `damaged` the fields that cannot be read.
    """

    generations: dict[tuple[int, int], Generation] = field(default_factory=dict)
    verdicts: dict[int, Verdict] = field(default_factory=dict)
    strikes: dict[int, int] = field(default_factory=dict)
    failures: dict[int, Failure] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)
    entries: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BatchStatus:
    """One batch as the ledger has it: pending, leased, done or dead, and its attempts.

    `kept` counts what earlier attempts left of an unfinished batch: generations and verdicts.
    `reason` is that of a dead batch. The monitor shows as waiting what is behind a canary.
    """

    name: str
    state: BatchState
    worker: str = ""
    attempts: int = 0
    kept: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class StageStatus:
    """The batches of a run in a stage behind generate; `dead` maps each to its reason."""

    pending: int
    leased: int
    done: int
    dead: dict[str, str]

    def counts(self) -> dict[str, int]:
        """The number of batches by state."""
        numbers = {"pending": self.pending, "leased": self.leased, "done": self.done}
        return numbers | {"dead": len(self.dead)}


@dataclass(frozen=True, slots=True)
class RunStatus:
    """The counts of a run; `counters` cover the done batches, `kept` the unfinished ones.

    `waits_for` is the canary batch while the others wait for it, and `canary` where that is:
    pending, leased, done (not judged yet), dead, or lost (in none of these); both are empty
    otherwise. `claims` counts the leases ever given. `refusal` is what Redis says to a write now,
    where somebody has tried one; empty when it takes it. `stages` holds the stages behind generate
    that were asked for.
    """

    name: str
    state: RunState
    reason: str
    fingerprint: str
    queue: str
    prompts: int
    batches: int
    created_ms: int
    now_ms: int
    pending: int
    leased: list[BatchStatus]
    done: int
    dead: dict[str, str]
    kept_bytes: int
    counters: dict[str, int]
    waits_for: str = ""
    claims: int = 0
    canary: str = ""
    refusal: str = ""
    stages: dict[str, StageStatus] = field(default_factory=dict)

    @property
    def known(self) -> int:
        """The batches that the ledger has, in whatever state; revisions count too."""
        return self.pending + len(self.leased) + self.done + len(self.dead)

    @property
    def finished(self) -> bool:
        """Nothing is left to do: every batch is done or dead, or the run was cancelled.

        Batches that an enqueue or a canary still holds back are counted in `batches` alone.
        """
        settled = self.pending == 0 and self.done + len(self.dead) >= self.batches
        return not self.leased and (settled or self.state == RunState.CANCELLED)
