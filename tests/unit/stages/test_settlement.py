"""A prompt that fails by itself costs itself: the others settle, it is rejected with its words."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from dflashq.core.errors import EngineError, EngineRequestError
from dflashq.core.generations.special_tokens import SpecialTokens
from dflashq.core.model import Generation, Prompt, RunSpec, Verdict
from dflashq.ledger import Kept, Lease
from dflashq.ledger.kept_codec import decode_kept
from dflashq.ledger.models import Failure
from dflashq.stages.attempt import Attempt, HandOverError
from dflashq.stages.generate import turns
from dflashq.stages.generate.settlement import Settlement

END, CLOSE = 4, 3
MARKERS = SpecialTokens(frozenset({END}), 2, CLOSE, frozenset(), 1000)
RECORD: Any = SimpleNamespace(spec=RunSpec(model="m", revision="r", queue="q"))
BAD = 3


def good(prompt_ids: list[int]) -> Generation:
    thought = [20 + prompt_ids[0], 21, 22, 23, 24]
    return Generation(prompt_ids, [*thought, CLOSE, *range(30, 60), END], "stop", END)


class Health:
    """Counts answers; everybody else is answered."""

    sick, sicknesses, answered, failed = "", 0, 0, 0

    @contextmanager
    def request(self, sender: object) -> Iterator[None]:
        try:
            yield
        except EngineError:
            self.failed += 1
            raise
        self.answered += 1

    async def probe_answers(self) -> bool:
        return True


class Place:
    """A station of fakes: `render` and `generate` may raise whatever they like."""

    def __init__(self, render: Callable[..., list[int]], generate: Callable[..., Any]) -> None:
        self.health: Any = Health()
        self.gate = SimpleNamespace(in_flight=0, leave=lambda: None)
        self.renderer = SimpleNamespace(render=render, decode=lambda ids: "text")
        self.markers, self.engine_id, self.output_tokens = MARKERS, "e1", 0
        self.context_length = None
        self.client = SimpleNamespace(generate=generate)
        self.keeping = SimpleNamespace(add=self._add, full=False)

    async def admit(self, attempt: Attempt, *, alone: bool) -> None:
        await asyncio.sleep(0)

    @staticmethod
    def _add(attempt: Attempt, field: str, payload: bytes | Generation) -> None:
        attempt.entries[field] = payload


def render(messages: list[Any], tools: object, *, thinking: bool) -> list[int]:
    return [int(messages[-1]["content"])]


async def generate(ids: list[int], *rest: object) -> Generation:
    return good(ids)


async def failing(ids: list[int], *rest: object) -> Generation:
    if ids == [BAD]:
        raise EngineRequestError("HTTP 451: not here", status=451)
    return good(ids)


def settle(
    place: Place,
    *,
    kept: Kept | None = None,
    others: bool = False,
    prompts: int = 8,
) -> tuple[dict[int, Verdict], Attempt]:
    attempt = Attempt(Lease("run", "batch-000000", "1-a", "w0@a", 0), 0.0)
    settlement = Settlement(
        attempt,
        place,  # type: ignore[arg-type]
        SimpleNamespace(note=lambda run, judged: None),  # type: ignore[arg-type]
        RECORD,
        kept or Kept(),
        {},
        lambda: others,
    )
    asked = [Prompt(n, f"p{n}", [{"role": "user", "content": str(n)}]) for n in range(prompts)]
    try:
        found = asyncio.run(settlement.run(asked))
    except HandOverError as exc:
        exc.attempt = attempt  # type: ignore[attr-defined]
        raise
    assert sorted(one.index for one in found) == list(range(prompts))
    return {one.index: one.verdict for one in found}, attempt


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "BACKOFF_S", 0.0)


def test_what_an_engine_fails_on_is_rejected_with_its_words() -> None:
    verdicts, attempt = settle(Place(render, failing))
    assert {index for index, one in verdicts.items() if one.accepted} == set(range(8)) - {BAD}
    assert verdicts[BAD].reason == "engine_error"
    assert "HTTP 451: not here" in verdicts[BAD].detail
    assert "w0@a" in verdicts[BAD].detail
    raw = {field.encode(): attempt.encoded(field) for field in attempt.entries}
    assert decode_kept(raw).verdicts[BAD] == verdicts[BAD], "the next attempt need not ask again"


def test_another_engine_decides_where_there_is_one() -> None:
    with pytest.raises(HandOverError, match=r"index 3 failed here and is tried on another") as told:
        settle(Place(render, failing), others=True)
    attempt: Attempt = told.value.attempt  # type: ignore[attr-defined]
    raw = {field.encode(): attempt.encoded(field) for field in attempt.entries}
    kept = decode_kept(raw)
    assert kept.failures[BAD].worker == "w0@a"
    assert len(kept.generations) == 7


def test_a_full_ledger_wants_the_batch_committed_here() -> None:
    """Handed over, it would wait for room that only its own commit makes."""
    place = Place(render, failing)
    place.keeping.full = True
    verdicts, _ = settle(place, others=True)
    assert verdicts[BAD].reason == "engine_error"


def test_what_failed_on_another_engine_too_is_rejected_at_once() -> None:
    kept = Kept(failures={BAD: Failure("w9@b", "failed 5 times: HTTP 500.")})
    verdicts, _ = settle(Place(render, failing), kept=kept, others=True)
    assert verdicts[BAD].reason == "engine_error"
    assert "w0@a" in verdicts[BAD].detail
    assert "Before, on the engine of w9@b, it failed 5 times" in verdicts[BAD].detail


class PanicException(BaseException):
    """As pyo3 names what a panic in Rust becomes."""


@pytest.mark.parametrize(
    "exc",
    [ZeroDivisionError("by 0"), RecursionError("deep"), KeyError("k"), PanicException("unwrap")],
)
def test_a_bug_that_one_prompt_meets_costs_that_prompt(exc: BaseException) -> None:
    def broken(messages: list[Any], tools: object, *, thinking: bool) -> list[int]:
        if messages[-1]["content"] == str(BAD):
            raise exc
        return render(messages, tools, thinking=thinking)

    verdicts, _ = settle(Place(broken, generate))
    assert [index for index, one in verdicts.items() if not one.accepted] == [BAD]
    assert verdicts[BAD].reason == "internal_error"
    assert type(exc).__name__ in verdicts[BAD].detail


def test_a_bug_in_judging_an_answer_costs_that_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    real = turns.checks.judge

    def judge(generation: Generation, *rest: Any, **more: Any) -> Verdict:
        if list(generation.prompt_ids) == [BAD]:
            raise IndexError("out of range")
        return real(generation, *rest, **more)

    monkeypatch.setattr(turns.checks, "judge", judge)
    verdicts, _ = settle(Place(render, generate))
    assert [index for index, one in verdicts.items() if not one.accepted] == [BAD]
    assert "IndexError: out of range" in verdicts[BAD].detail


def test_a_bug_that_every_prompt_meets_is_the_attempts() -> None:
    def broken(*rest: object, **more: object) -> list[int]:
        raise ZeroDivisionError("by 0")

    with pytest.raises(EngineError, match=r"all 8 prompts failed inside dflashq.*by 0"):
        settle(Place(broken, generate))


@pytest.mark.parametrize("exc", [OSError(24, "Too many open files"), MemoryError()])
def test_trouble_of_the_machine_is_no_prompts_fault(exc: Exception) -> None:
    async def short_of(ids: list[int], *rest: object) -> Generation:
        if ids == [BAD]:
            raise exc
        return good(ids)

    with pytest.raises(type(exc)):
        settle(Place(render, short_of))
