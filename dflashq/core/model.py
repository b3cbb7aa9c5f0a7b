"""The records of a run: its spec, prompts, generations, verdicts, batches, committed objects.

`from_json` ignores fields that it does not know: a newer version of the same format has them. A
field that changes what is generated therefore needs a new major version (`core.schema`); in a spec,
which decides what is generated, an unknown field is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dflashq.core.errors import NewerFormatError
from dflashq.core.schema import known_fields, unknown_fields
from dflashq.core.token_ids import IdArray, Ids, compact, id_array

Message = dict[str, Any]


def canonical_json(value: object) -> bytes:
    """`value` as JSON with sorted keys, without spaces, in UTF-8: equal values, equal bytes."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode()


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Sampling(_Frozen):
    """Sampling parameters; every request carries all of them.

    There are no penalties, since engines only approximate them under speculative decoding.
    """

    temperature: float = Field(1.0, ge=0)
    top_p: float = Field(0.95, gt=0, le=1)
    top_k: int = Field(20, ge=-1)
    min_p: float = Field(0.0, ge=0, le=1)
    max_new_tokens: int = Field(16384, ge=1)


class Checks(_Frozen):
    """Thresholds of the verdicts (`core.generations.checks`), in tokens where not counts or shares.

    A generation loops when its last `loop_window` ids, and at least `loop_min_repeats` periods,
    repeat with a period of at most `loop_max_period` ids; or when, of the n-grams of `ngram` ids in
    its last `ngram_window` ids, the share of distinct ones is below `ngram_min_distinct`. An output
    of at most `repeat_max_tokens` ids is a stub when `repeat_min` prompts of a batch get the same
    one (0: no such check).
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
    """When a run stops itself. `max_rejected` is a share of prompts.

    A canary batch of `canary` prompts, drawn over all domains, runs first (0: none). All other
    batches wait until at most `max_rejected` of its prompts are rejected and its accepted prompts
    have a median of at least `min_median_tokens` generated tokens. Later a worker pauses the run
    when more than `max_rejected` of its last `window` prompts are rejected.
    """

    canary: int = Field(48, ge=0, le=48)
    max_rejected: float = Field(0.3, ge=0, le=1)
    min_median_tokens: int = Field(16, ge=0)
    window: int = Field(200, ge=10)


class RetryStep(_Frozen):
    """One step of the retry ladder: a turn rejected for one of `reasons` is generated again.

    `max_new_tokens` replaces the limit of the run for that retry. The row records every retry:
    answers that were chosen after a rejection are a biased sample of what the model says.
    """

    reasons: tuple[str, ...] = Field(min_length=1)
    max_new_tokens: int | None = Field(None, ge=1)


class RunSpec(_Frozen):
    """What a run asks for, apart from its prompts. It never changes under the run's name.

    `revision` pins the weights; `thinking` goes to the chat template; `ladder` lists the retries.
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

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> RunSpec:
        """The spec of a `run.json`.

        NewerFormatError for a field or value that is not known here: it decides what is generated.
        """
        try:
            return cls(**row)
        except ValidationError as exc:
            # repr: a name from a file may hold what a terminal obeys.
            fields = ", ".join(repr(".".join(map(str, error["loc"]))) for error in exc.errors())
            raise NewerFormatError(
                f"the run's spec asks for what this dflashq does not know ({fields}): a newer "
                "version wrote it, or it is damaged. Nothing was changed. Install that version "
                "here (`pip install -U dflashq`), or leave the run to the hosts that have it."
            ) from None

    def sampling_at(self, step: int) -> Sampling:
        """Sampling of a turn's first generation (step 0), or of the retry by that ladder step."""
        limit = self.ladder[step - 1].max_new_tokens if step else None
        return self.sampling.model_copy(update={"max_new_tokens": limit} if limit else {})


@dataclass(frozen=True, slots=True)
class Prompt:
    """One conversation to answer: `messages` holds system and user turns only, in order.

    One assistant turn is generated after every user turn. `index` identifies the prompt in its run;
    `id` is the one that the user gave, and may repeat.
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
    def from_json(cls, row: Mapping[str, Any]) -> Prompt:
        return cls(**known_fields(cls, row))

    @property
    def chars(self) -> int:
        """Roughly how many characters its messages and tools have."""
        texts = sum(len(message["content"]) for message in self.messages)
        return texts + len(str(self.tools or ""))

    @property
    def opening(self) -> list[Message]:
        """The messages up to the first user turn."""
        roles = [message["role"] for message in self.messages]
        return self.messages[: roles.index("user") + 1] if "user" in roles else []

    @property
    def turns(self) -> int:
        """How many assistant turns this prompt asks for."""
        return sum(message["role"] == "user" for message in self.messages)


@dataclass(frozen=True, slots=True)
class Generation:
    """One assistant turn as the engine generated it: its exact ids, never re-tokenized text.

    `prompt_ids` and `output_ids` are lists of int as they come from the engine, and one-dimensional
    uint32 arrays after `with_origin` and when read from kept work. `finish_reason` is the engine's
    (stop, length, abort); `matched` is the stop that it names: the id of an end token, a string for
    a stop that nobody asked for, or None. `spec_accept_length` is in tokens a step. `engine` is the
    id of the engine record of the server that generated it, at `at` (seconds since 1970).
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
        """`output_ids` as a uint32 array of shape (number of ids,)."""
        return id_array(self.output_ids)

    def with_origin(self, engine: str, at: float) -> Generation:
        """The same with its origin, and with its ids as arrays, since hundreds wait to be kept."""
        prompt, output = compact(self.prompt_ids), compact(self.output_ids)
        return replace(self, prompt_ids=prompt, output_ids=output, engine=engine, at=at)

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Generation:
        return cls(**known_fields(cls, row))


def kept_slot(turn: int, step: int) -> int:
    """The number under which a generation is kept, unique in its prompt for each turn and retry."""
    return turn + 10_000 * step


@dataclass(frozen=True, slots=True)
class Verdict:
    """Accepted (`reason` is None), or rejected with a reason word and a sentence (`detail`)."""

    reason: str | None = None
    detail: str = ""

    @property
    def accepted(self) -> bool:
        return self.reason is None


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """A committed completions object: its key, the sha256 of its bytes, and its counts.

    `unknown` holds the fields of a newer version. They are written back as they were read, since
    the ledger compares references as whole texts.
    """

    key: str
    sha256: str
    fingerprint: str
    counts: dict[str, int] = field(default_factory=dict)
    rejected_key: str | None = None
    rejected_sha256: str | None = None
    unknown: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        row = asdict(self)
        return {**row.pop("unknown"), **row}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> ObjectRef:
        known = known_fields(cls, {name: row[name] for name in row if name != "unknown"})
        return cls(**known, unknown=unknown_fields(cls, row))


def counters(ref: ObjectRef, superseded: Mapping[str, int]) -> dict[str, int]:
    """What a committed batch adds to its run's counters; a number may be negative.

    `superseded` counts, by reason, the rejected rows that a revision replaces. The prompts of a
    revision were counted with its batch.
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
    """One batch in run.json: its prompts object, and its index range `first` to `last`, inclusive.

    In a revision the range may have gaps.
    """

    name: str
    key: str
    sha256: str
    prompts: int
    first: int
    last: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> BatchRecord:
        return cls(**known_fields(cls, row))


@dataclass(frozen=True, slots=True)
class RunRecord:
    """`run.json`: spec, prompts and fingerprint of a run. An enqueue writes it once, at its end."""

    name: str
    spec: RunSpec
    prompts: int
    prompts_sha256: str
    batches: list[BatchRecord]
    fingerprint: str
    created: str
    version: str

    def to_json(self) -> dict[str, Any]:
        row = {name: getattr(self, name) for name in self.__slots__}
        row["spec"] = self.spec.model_dump(mode="json")
        row["batches"] = [batch.to_json() for batch in self.batches]
        return row

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> RunRecord:
        """NewerFormatError for a spec that cannot be read here."""
        batches = [BatchRecord.from_json(batch) for batch in row["batches"]]
        spec = RunSpec.from_json(row["spec"])
        return cls(**{**known_fields(cls, row), "spec": spec, "batches": batches})


def fingerprint(spec: RunSpec, prompts_sha256: str) -> str:
    """sha256 (hex) of the spec and the prompts of a run: two runs that agree in both are one."""
    return hashlib.sha256(
        canonical_json({"spec": spec.model_dump(mode="json"), "prompts": prompts_sha256})
    ).hexdigest()


def spec_differences(
    old: RunSpec, old_prompts: str, new: RunSpec, new_prompts: str
) -> dict[str, tuple[object, object]]:
    """The fields in which two runs differ, dotted (`sampling.top_p`), each with (old, new)."""
    before, after = _flat(old.model_dump(mode="json")), _flat(new.model_dump(mode="json"))
    before["prompts_sha256"], after["prompts_sha256"] = old_prompts, new_prompts
    pairs = {name: (before.get(name), after.get(name)) for name in sorted(before | after)}
    differs = {name: (was, now) for name, (was, now) in pairs.items() if was != now}
    if differs.keys() & {"batch_size", "guard.canary"}:
        # Another canary or batch size orders the same prompts anew, so the hash says nothing.
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
