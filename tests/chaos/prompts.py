"""The prompts of the chaos, some of which a gateway refuses for ever, each in its own way."""

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


def words(how: Refusal | int) -> str:
    """What stands in a prompt that is refused so."""
    return f" refused {how} refused"


def refused_marks(model: Path) -> list[tuple[list[int], Refusal | int]]:
    """The fault of the emulated engine that refuses these prompts."""
    renderer = ChatRenderer(model)
    return [(ids_inside(renderer, words(how)), how) for how in REFUSALS]


def expected_reasons(prompts: int, *, refusing: bool) -> dict[int, str]:
    """The reason of rejection by index, for a run of so many prompts; a gateway may refuse none."""
    refused = {n: refusal_of(n) for n in range(prompts)} if refusing else {}
    return {index: REFUSALS[how] for index, how in refused.items() if how is not None}


def write_prompts(path: Path, run: str, count: int) -> None:
    """A prompt file of which every fourth prompt has two turns; no other run has its prompts."""
    with path.open("w") as file:
        for number in range(count):
            turns = 2 if number % 4 == 0 else 1
            how = refusal_of(number)
            mark = "" if how is None else f"x{words(how)} x "
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
