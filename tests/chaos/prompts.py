"""The prompts of a chaos. A gateway refuses some of them for ever, in one of several ways."""

from __future__ import annotations

import json
from pathlib import Path

from dflashq.engine.chat_renderer import ChatRenderer
from tests.support.engine_emulator.faults import Refusal

# How the emulated engine refuses the prompts that say so, and the reason of their rejection.
ENGINE_ERROR, REFUSED_INPUT = "engine_error", "refused_input"
REFUSALS: dict[Refusal | int, str] = {
    500: ENGINE_ERROR,
    403: ENGINE_ERROR,
    451: ENGINE_ERROR,
    "close": ENGINE_ERROR,
    "garbage": ENGINE_ERROR,
    400: REFUSED_INPUT,
}
EVERY = 40  # prompts, of which one is refused


def refusal_of(index: int) -> Refusal | int | None:
    """How the prompt of this index is refused in every run; None for most."""
    number, place = divmod(index, EVERY)
    return list(REFUSALS)[number % len(REFUSALS)] if place == 7 else None


def refusal_mark(how: Refusal | int) -> str:
    """The text in a prompt by which the emulated engine knows how to refuse it."""
    return f" refused {how} refused"


def refused_marks(model: Path) -> list[tuple[list[int], Refusal | int]]:
    """The fault of the emulated engine that refuses these prompts."""
    renderer = ChatRenderer(model)
    return [(ids_inside(renderer, refusal_mark(how)), how) for how in REFUSALS]


def expected_reasons(prompts: int, *, refusing: bool) -> dict[int, str]:
    """The reason of rejection by index in a run of `prompts`; empty without `refusing`."""
    refused = {n: refusal_of(n) for n in range(prompts)} if refusing else {}
    return {index: REFUSALS[how] for index, how in refused.items() if how is not None}


def write_prompts(path: Path, run: str, count: int) -> None:
    """Write a prompt file; every fourth prompt has two turns. No other run has the same prompts."""
    with path.open("w") as file:
        for number in range(count):
            turns = 2 if number % 4 == 0 else 1
            how = refusal_of(number)
            mark = "" if how is None else f"x{refusal_mark(how)} x "
            messages = [
                {"role": "user", "content": f"{mark}{run}: what is {number} plus {turn}?"}
                for turn in range(turns)
            ]
            file.write(json.dumps({"id": f"p{number}", "messages": messages}) + "\n")


def ids_inside(renderer: ChatRenderer, text: str) -> list[int]:
    """The ids of `text`, which begins with a space, as they stand inside a prompt."""
    plain, marked = (
        renderer.render([{"role": "user", "content": f"x{part} x"}], None, thinking=True)
        for part in ("", text)
    )
    start = next(i for i, (a, b) in enumerate(zip(plain, marked, strict=False)) if a != b)
    ids = marked[start : start + len(marked) - len(plain)]
    assert text.strip() in renderer.decode(ids)
    return ids
