"""First turns rendered ahead: the ordinary ones still to be asked, for a second at most."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dflashq.core.errors import EngineRefusedError
from dflashq.core.model import Generation, Message, Prompt, RunSpec, Verdict
from dflashq.ledger import Kept, Lease
from dflashq.stages.attempt import Attempt, StoppedError
from dflashq.stages.generate import batch
from dflashq.stages.generate.batch import GenerateBatch

RECORD: Any = SimpleNamespace(spec=RunSpec(model="m", revision="r", queue="q"))


class Renderer:
    """One id a character; refuses what says so."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def render(self, messages: list[Message], tools: object, *, thinking: bool) -> list[int]:
        assert (tools, thinking) == (None, True)
        text = messages[-1]["content"]
        self.asked.append(text)
        if "refuse" in text:
            raise EngineRefusedError("no")
        return [ord(character) for character in text]


def prompt(index: int, *turns: str) -> Prompt:
    return Prompt(index, f"p{index}", [{"role": "user", "content": turn} for turn in turns])


def work(renderer: Renderer) -> tuple[GenerateBatch, Attempt]:
    attempt = Attempt(Lease("run", "batch-000000", "1-a", "w", 0), 0.0)
    session: Any = SimpleNamespace(renderer=renderer)
    nobody: Any = None
    return GenerateBatch(attempt, session, nobody, nobody, nobody, nobody, nobody, nobody), attempt


def test_what_was_begun_is_refused_or_long_waits_for_its_time() -> None:
    renderer = Renderer()
    made, _ = work(renderer)
    kept = Kept(generations={(1, 0): Generation([1], [2], "stop")}, verdicts={2: Verdict("stub")})
    prompts = [
        prompt(0, "ab", "later"),
        prompt(1, "kept"),
        prompt(2, "judged"),
        prompt(3, "refuse me"),
        prompt(4, "x" * (batch.AHEAD_CHARS + 1)),
    ]
    openings = made._openings(RECORD, prompts, kept)
    assert {index: ids.tolist() for index, ids in openings.items()} == {0: [97, 98]}
    assert renderer.asked == ["ab", "refuse me"]


def test_the_engine_does_not_wait_for_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "AHEAD_S", -1.0)
    renderer = Renderer()
    assert work(renderer)[0]._openings(RECORD, [prompt(0, "ab")], Kept()) == {}
    assert renderer.asked == []


def test_an_attempt_that_is_stopped_renders_no_more() -> None:
    made, attempt = work(Renderer())
    attempt.stop("paused")
    with pytest.raises(StoppedError):
        made._openings(RECORD, [prompt(0, "ab")], Kept())
