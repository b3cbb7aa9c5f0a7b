"""The ways in which the emulated engine fails, each set by a fraction or a switch."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from tests.support.engine_emulator.answers import unit

CONTENT = (
    "stub",
    "truncated",
    "clamped",
    "looping",
    "nan",
    "empty",
    "no_answer",
    "corrupt_vocab",
    "corrupt_end",
    "bad_markup",
    "http_400",
    "refused",
    "hang_requests",
    "endless",
)
TRANSIENT = ("abort", "http_500", "http_503", "reset", "garbage", "altered_prompt")

Refusal = Literal["status", "close", "garbage"]
Fraction = Field(0.0, ge=0, le=1)


class Faults(BaseModel):
    """Fractions (0 to 1) and switches; all off by default.

    A content fault belongs to a prompt: the same prompt has it in every request and in every
    process with the same seed. A transient fault belongs to a request: it is drawn anew from the
    prompt and the number of times this process was asked for it, so a retry may succeed.
    In each of the two groups the fractions are stacked in the order written here: they exclude
    each other and their sum is at most 1.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    stub: float = Fraction
    truncated: float = Fraction
    clamped: float = Fraction
    looping: float = Fraction
    nan: float = Fraction
    empty: float = Fraction
    no_answer: float = Fraction
    corrupt_vocab: float = Fraction
    corrupt_end: float = Fraction
    bad_markup: float = Fraction
    http_400: float = Fraction
    refused: float = Fraction
    hang_requests: float = Fraction
    endless: float = Fraction

    abort: float = Fraction
    http_500: float = Fraction
    http_503: float = Fraction
    reset: float = Fraction
    garbage: float = Fraction
    altered_prompt: float = Fraction
    refused_over: int = Field(0, ge=0, description="`refused` for every prompt of more ids; 0: off")
    refused_how: Refusal = Field(
        "status", description="an HTTP error, no answer at all, or 200 with a body cut short"
    )
    refused_marks: list[tuple[list[int], Refusal | int]] = Field(
        [],
        description="refuse a prompt with one of these id sequences, in its own way or status",
    )
    refused_status: int = Field(500, ge=400, le=599, description="the HTTP status of `refused`")
    every_status: int = Field(
        0, description="an engine that only errs: every request gets this HTTP status; 0: off"
    )
    retry_after_s: float = Field(
        0.0, ge=0, description="the Retry-After of every 429 and 503; 0: none"
    )
    spare_short: int = Field(
        0,
        ge=0,
        description="prompts of at most so many ids meet neither `refused` nor `every_status`",
    )
    transient_tries: int | None = Field(
        None, ge=1, description="only the first N requests of a prompt meet transient faults"
    )

    hang: bool = Field(False, description="no token moves, nothing is answered; /health says 200")
    health_503: bool = Field(False, description="/health says 503 while all else works")
    retracted: int = Field(0, ge=0, description="so many requests were retracted, say the metrics")
    rendering: Literal["", "empty", "refused"] = Field(
        "", description="/v1/tokenize answers with no ids, or refuses every conversation"
    )
    no_metrics: bool = Field(False, description="/metrics answers 404")
    deaf_to_disconnects: bool = Field(
        False, description="a request whose client went away runs on until it is aborted"
    )
    slow: float = Field(1.0, gt=0, description="every token takes this many times as long")
    poison: list[list[int]] = Field(
        [], description="die when a prompt that contains one of these id sequences runs"
    )
    poison_hashes: list[str] = Field([], description="die when a prompt with this hash runs")
    poison_delay_s: float = Field(0.0, ge=0, description="how long after it began to run")
    crash_after: int | None = Field(None, ge=1, description="die after this many answers")
    ready_after_s: float = Field(0.0, ge=0, description="at start: listen only after this time")
    exit_at_start: str = Field("", description="at start: print this and exit with status 1")

    @model_validator(mode="after")
    def _sums(self) -> Faults:
        for group in (CONTENT, TRANSIENT):
            total = sum(getattr(self, name) for name in group)
            if total > 1 + 1e-9:
                raise ValueError(f"the fractions of {', '.join(group)} sum to {total}")
        return self

    @field_validator("every_status")
    @classmethod
    def _is_error(cls, status: int) -> int:
        if status and not 400 <= status <= 599:
            raise ValueError(f"{status} is no HTTP error")
        return status

    def changed(self, changes: dict[str, object]) -> Faults:
        """These faults with `changes`; pydantic's ValidationError when they make no sense."""
        return Faults.model_validate({**self.model_dump(), **changes})

    def content(self, prompt: str, seed: int, length: int) -> str:
        """The content fault of a prompt (its hash) of `length` ids, or an empty string."""
        fault = self._pick(CONTENT, unit(seed, "content", prompt))
        if self.refused_over and length > self.refused_over:
            fault = "refused"
        return "" if fault == "refused" and length <= self.spare_short else fault

    def refusal(self, content: str, ids: list[int]) -> Refusal | int | None:
        """How a prompt with this content fault is refused, an HTTP status or in words, or None."""
        for part, how in self.refused_marks:
            if _contains(ids, part):
                return how
        if content != "refused":
            return None
        return self.refused_status if self.refused_how == "status" else self.refused_how

    def errs(self, length: int) -> bool:
        """True when the engine only errs, and does not spare prompts of `length` ids."""
        return bool(self.every_status) and length > self.spare_short

    def transient(self, prompt: str, seed: int, tries: int) -> str:
        """The transient fault of the `tries`-th request (from 1) for a prompt, or ''."""
        if self.transient_tries is not None and tries > self.transient_tries:
            return ""
        return self._pick(TRANSIENT, unit(seed, "transient", prompt, tries))

    def is_poison(self, prompt: str, ids: list[int]) -> bool:
        """True when this prompt kills the engine that runs it."""
        return prompt in self.poison_hashes or any(_contains(ids, part) for part in self.poison)

    def _pick(self, group: tuple[str, ...], draw: float) -> str:
        edge = 0.0
        for name in group:
            edge += getattr(self, name)
            if draw < edge:
                return name
        return ""


def _contains(ids: list[int], part: list[int]) -> bool:
    width = len(part)
    return any(ids[i : i + width] == part for i in range(len(ids) - width + 1))
