"""The words of the product as types: run spec, prompt, generation, sample, object reference."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from dflashq.core.token_ids import IdArray, Ids, compact, id_array

Message = dict[str, Any]


def canonical_json(value: object) -> bytes:
    """The one JSON spelling of `value` (sorted keys, no spaces, UTF-8), for hashing."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode()


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Sampling(_Frozen):
    """Sampling parameters, all sent with every request; penalties are always neutral.

    Under speculation penalties are only approximated, so they are not offered.
    """

    temperature: float = Field(1.0, ge=0)
    top_p: float = Field(0.95, gt=0, le=1)
    top_k: int = Field(20, ge=-1)
    min_p: float = Field(0.0, ge=0, le=1)
    max_new_tokens: int = Field(16384, ge=1)


class Checks(_Frozen):
    """Thresholds of the verdicts (`core.checks`); units: tokens.

    A generation loops when its last `loop_window` ids, and at least `loop_min_repeats` periods,
    repeat with a period of at most `loop_max_period`; or when less than `ngram_min_distinct` of
    the n-grams of `ngram` ids in its last `ngram_window` ids are different ones. A short output
    (at most `repeat_max_tokens`) that `repeat_min` prompts of a batch get to the letter is a stub
    (0: no such check).
    """

    min_answer_tokens: int = Field(1, ge=1)
    repeat_max_tokens: int = Field(64, ge=1)
    repeat_min: int = Field(5, ge=0)
    ngram: int = Field(8, ge=1)
    ngram_window: int = Field(2048, ge=64)
    ngram_min_distinct: float = Field(0.2, ge=0, le=1)
    loop_window: int = Field(256, ge=2)
    loop_max_period: int = Field(64, ge=1)
    loop_min_repeats: int = Field(8, ge=2)


class Guard(_Frozen):
    """When a run stops itself. Shares are of prompts, lengths are of generated tokens.

    The first `canary` prompts, drawn over all domains, go alone (0: no canary); the others wait
    until no more than `max_rejected` of them are rejected and the accepted ones have a median of
    at least `min_median_tokens`. Later the run is paused when more than `max_rejected` of the last
    `window` prompts of a worker are rejected.
    """

    canary: int = Field(48, ge=0, le=48)
    max_rejected: float = Field(0.3, ge=0, le=1)
    min_median_tokens: int = Field(16, ge=0)
    window: int = Field(200, ge=10)


class RetryStep(_Frozen):
    """One step of the retry ladder: a turn rejected for one of `reasons` is drawn once more.

    With `max_new_tokens` it may be longer then. The retry is recorded in the row, since answers
    that were chosen after a rejection are not quite what the model says by itself.
    """

    reasons: tuple[str, ...] = Field(min_length=1)
    max_new_tokens: int | None = Field(None, ge=1)


class RunSpec(_Frozen):
    """What a run asks for, apart from its prompts: immutable under the run's name.

    `revision` pins the weights, `tokenizer_sha256` the vocabulary and chat template they are
    rendered with (empty: whatever the revision carries). `thinking` goes to the chat template.
    """

    model: str
    revision: str
    queue: str
    thinking: bool = True
    sampling: Sampling = Sampling()
    checks: Checks = Checks()
    guard: Guard = Guard()
    ladder: tuple[RetryStep, ...] = ()
    batch_size: int = Field(1000, ge=1, le=1000)

    def sampling_at(self, rung: int) -> Sampling:
        """Sampling of a turn's first draw (rung 0), or of a retry."""
        limit = self.ladder[rung - 1].max_new_tokens if rung else None
        return self.sampling.model_copy(update={"max_new_tokens": limit} if limit else {})


@dataclass(frozen=True, slots=True)
class Prompt:
    """One conversation to answer: `messages` holds system and user turns only, in order.

    One assistant turn is generated after every user turn. `index` is its identity in the run;
    `id` is the user's and may repeat.
    """

    index: int
    id: str
    messages: list[Message]
    source: str | None = None
    domain: str | None = None
    tools: list[dict[str, Any]] | None = None

    def to_json(self) -> dict[str, Any]:
        return {k: v for k, v in asdict(self).items() if v is not None}

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> Prompt:
        return cls(**row)

    @property
    def chars(self) -> int:
        """How long its messages and tools are, in characters, about."""
        return sum(len(m["content"]) for m in self.messages) + len(str(self.tools or ""))

    @property
    def opening(self) -> list[Message]:
        """The messages up to the first user turn."""
        first = next((n for n, m in enumerate(self.messages) if m["role"] == "user"), -1)
        return self.messages[: first + 1]

    @property
    def turns(self) -> int:
        """How many assistant turns this prompt asks for."""
        return sum(1 for m in self.messages if m["role"] == "user")


@dataclass(frozen=True, slots=True)
class Generation:
    """One assistant turn as the engine gave it: exact ids, never re-tokenized text.

    `finish_reason` is the engine's type (stop, length, abort); `matched` the stop it names: the
    id of an end token, a string for a stop that was not asked for, or None. `engine` is the id of
    the engine record that says which server gave it, `at` when (seconds since 1970).

    The ids come from the engine as lists; with their origin, and from what was kept, as arrays.
    """

    prompt_ids: Ids
    output_ids: Ids
    finish_reason: str
    matched: int | str | None = None
    spec_accept_length: float | None = None
    latency_s: float | None = None
    engine: str = ""
    at: float = 0.0

    @property
    def output_array(self) -> IdArray:
        """`output_ids` as an array."""
        return id_array(self.output_ids)

    def made_by(self, engine: str, at: float) -> Generation:
        """The same with its origin, and its ids as arrays: hundreds wait to be kept."""
        prompt, output = compact(self.prompt_ids), compact(self.output_ids)
        return replace(self, prompt_ids=prompt, output_ids=output, engine=engine, at=at)

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> Generation:
        return cls(**row)


def slot(turn: int, rung: int) -> int:
    """The number under which a generation is kept: the turn, or a slot of its own for a retry."""
    return turn + 10_000 * rung


@dataclass(frozen=True, slots=True)
class Verdict:
    """accepted (`reason` None) or rejected with one reason word and a sentence."""

    reason: str | None = None
    detail: str = ""

    @property
    def accepted(self) -> bool:
        return self.reason is None


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """A committed object: its key, the sha256 of its bytes, and what it counts."""

    key: str
    sha256: str
    fingerprint: str
    counts: dict[str, int] = field(default_factory=dict)
    rejected_key: str | None = None
    rejected_sha256: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> ObjectRef:
        return cls(**row)


def counters(ref: ObjectRef, superseded: Mapping[str, int]) -> dict[str, int]:
    """What a committed batch adds to its run's counters.

    `superseded` counts, by reason, the rejected rows that a revision replaces: its prompts are
    not new ones.
    """
    added = dict(ref.counts)
    if superseded:
        added["prompts"] = 0
        for reason, count in superseded.items():
            name = f"rejected_{reason}"
            added[name] = added.get(name, 0) - count
    return added


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """One batch in run.json: its prompt object and the index range it covers (inclusive)."""

    name: str
    key: str
    sha256: str
    prompts: int
    first: int
    last: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class RunRecord:
    """`run.json`: spec, prompts and fingerprint of a run; written once, last of an enqueue."""

    name: str
    spec: RunSpec
    prompts: int
    prompts_sha256: str
    batches: list[BatchRecord]
    fingerprint: str
    created: str
    version: str

    def to_json(self) -> dict[str, Any]:
        row = {k: getattr(self, k) for k in self.__slots__}
        row["spec"] = self.spec.model_dump(mode="json")
        row["batches"] = [b.to_json() for b in self.batches]
        return row

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> RunRecord:
        batches = [BatchRecord(**b) for b in row["batches"]]
        return cls(**{**row, "spec": RunSpec(**row["spec"]), "batches": batches})


def fingerprint(spec: RunSpec, prompts_sha256: str) -> str:
    """sha256 (hex) of what a run is: its spec and its prompts, nothing else."""
    return hashlib.sha256(
        canonical_json({"spec": spec.model_dump(mode="json"), "prompts": prompts_sha256})
    ).hexdigest()


def spec_differences(
    old: RunSpec, old_prompts: str, new: RunSpec, new_prompts: str
) -> dict[str, tuple[object, object]]:
    """The fields in which two runs differ, dotted (`sampling.top_p`), as (old, new)."""
    a, b = _flat(old.model_dump(mode="json")), _flat(new.model_dump(mode="json"))
    a["prompts_sha256"], b["prompts_sha256"] = old_prompts, new_prompts
    differs = {k: (a.get(k), b.get(k)) for k in sorted(a | b) if a.get(k) != b.get(k)}
    if differs.keys() & {"batch_size", "guard.canary"}:
        # Another canary is another order of the same prompts: that says nothing of the files.
        differs.pop("prompts_sha256", None)
    return differs


def _flat(row: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, dict):
            out |= _flat(value, f"{prefix}{key}.")
        else:
            out[prefix + key] = value
    return out
