"""Boundaries on the real vocabulary and template of Qwen3.6, in every shape that answers take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dflashq.config import Settings
from dflashq.core.generations.answer_text import AnswerParts, split_answer
from dflashq.core.generations.checks import judge
from dflashq.core.generations.sample_rows import assistant_message, sample_row
from dflashq.core.generations.segments import OutputSegments
from dflashq.core.model import Checks, Generation, Prompt
from dflashq.core.training_data.rows import rows_of
from dflashq.engine.chat_renderer import ChatRenderer
from dflashq.operations.results.validate import read_markers
from tests.acceptance.qwen_vocabulary import ensure_qwen

END = 248_046
THINK, CLOSE = 248_068, 248_069
QUESTION = [{"role": "user", "content": "What is 2 + 2?"}]
WEATHER = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            },
        },
    }
]
# Of four bytes each, and none is a token of its own.
SPLIT = "𓀀𒀱🫨"


@pytest.fixture(scope="module")
def folder() -> Path:
    settings = Settings(_env_file=None)  # type: ignore[call-arg]
    return ensure_qwen(settings.cache_dir, print)


@pytest.fixture(scope="module")
def renderer(folder: Path) -> ChatRenderer:
    return ChatRenderer(folder)


def ids(renderer: ChatRenderer, text: str) -> list[int]:
    return [int(i) for i in renderer._tokenizer.encode(text, add_special_tokens=False)]


def generation(
    renderer: ChatRenderer,
    output: list[int],
    *,
    thinking: bool = True,
    tools: list[dict[str, Any]] | None = None,
) -> Generation:
    prompt = renderer.render(QUESTION, tools, thinking=thinking)
    ended = bool(output) and output[-1] == END
    reason = "stop" if ended else "length"
    return Generation(prompt, output, reason, matched=END if ended else None)


def reason(renderer: ChatRenderer, made: Generation, *, thinking: bool = True) -> str | None:
    return judge(
        made,
        OutputSegments(made.output_array, renderer.markers(), thinking=thinking),
        checks=Checks(),
        max_new_tokens=len(made.output_ids) if made.finish_reason == "length" else 1000,
    ).reason


def parts(
    renderer: ChatRenderer,
    made: Generation,
    *,
    thinking: bool = True,
    tools: list[dict[str, Any]] | None = None,
) -> AnswerParts:
    output = OutputSegments(made.output_array, renderer.markers(), thinking=thinking)
    return split_answer(output, renderer.decode, tools)


def assert_row_is_exact(
    renderer: ChatRenderer, made: Generation, output: str, *, thinking: bool = True
) -> None:
    """The row supervises what the model said, byte for byte, and nothing else."""
    split = parts(renderer, made, thinking=thinking)
    prompt = Prompt(0, "p", QUESTION)
    messages = [*QUESTION, assistant_message(split)]
    (row,) = rows_of(sample_row(prompt, messages, [made], split.reasoning_tokens, 1))
    assert row.input_ids == made.prompt_ids + made.output_ids
    supervised = [i for i, bit in zip(row.input_ids, row.loss_mask, strict=True) if bit]
    assert supervised == made.output_ids
    assert renderer.decode(supervised) == output
    given = [i for i, bit in zip(row.input_ids, row.loss_mask, strict=True) if not bit]
    opening = "<|im_start|>assistant\n<think>\n" + ("" if thinking else "\n</think>\n\n")
    assert renderer.decode(given).endswith(opening)


def test_the_vocabulary_is_the_real_one(renderer: ChatRenderer, folder: Path) -> None:
    markers = renderer.markers()
    assert (markers.think_open, markers.think_close) == (THINK, CLOSE)
    assert markers.end_ids == {END, 248_044}
    assert markers.vocab_size == 248_320
    theirs = read_markers(folder)
    assert (theirs.end_ids, theirs.think_close) == (markers.end_ids, CLOSE)
    assert theirs.blank_ids == markers.blank_ids
    for text in ("Hello! 毕老师 1 + 1 = 2", "def f(x):\n\treturn  x**2  # ünïcode\n\n\n", SPLIT):
        assert renderer.decode(ids(renderer, text)) == text
    assert len(ids(renderer, " the answer is")) == 3, "whole words are one token each"


def test_thinking(renderer: ChatRenderer) -> None:
    output = "The sum is 4.\n</think>\n\nIt is 4.<|im_end|>"
    made = generation(renderer, ids(renderer, output))
    assert made.prompt_ids[-2] == THINK
    assert reason(renderer, made) is None
    found = parts(renderer, made)
    assert (found.reasoning_content, found.content) == ("The sum is 4.", "It is 4.")
    assert found.reasoning_tokens == made.output_ids.index(CLOSE) + 1
    assert_row_is_exact(renderer, made, output)


@pytest.mark.parametrize(
    "output",
    [
        "  indented thought\n</think>\n\nIt is 4.<|im_end|>",
        "x\n</think>\n\nIt is 4.  \n<|im_end|>",
        "x</think>It is 4.<|im_end|>",
        "x\n</think>\n\n    indented code<|im_end|>",
        "\n</think>\n\nIt is 4.<|im_end|>",
    ],
)
def test_shapes_that_rendering_again_would_change(renderer: ChatRenderer, output: str) -> None:
    made = generation(renderer, ids(renderer, output))
    assert reason(renderer, made) is None
    assert_row_is_exact(renderer, made, output)
    found = parts(renderer, made)
    again = renderer._tokenizer.apply_chat_template(
        [*QUESTION, assistant_message(found)], tokenize=True, return_dict=False
    )
    assert list(again) != made.prompt_ids + made.output_ids


def test_no_thinking(renderer: ChatRenderer) -> None:
    output = "It is 4.<|im_end|>"
    made = generation(renderer, ids(renderer, output), thinking=False)
    assert CLOSE in made.prompt_ids[-4:]
    assert reason(renderer, made, thinking=False) is None
    found = parts(renderer, made, thinking=False)
    assert (found.reasoning_content, found.content, found.reasoning_tokens) == (None, "It is 4.", 0)
    assert_row_is_exact(renderer, made, output, thinking=False)


def test_tool_calls(renderer: ChatRenderer) -> None:
    output = (
        "I should look.\n</think>\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n"
        "</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call><|im_end|>"
    )
    made = generation(renderer, ids(renderer, output), tools=WEATHER)
    assert "get_weather" in renderer.decode(made.prompt_ids)
    assert reason(renderer, made) is None
    found = parts(renderer, made, tools=WEATHER)
    assert (found.reasoning_content, found.content) == ("I should look.", "")
    assert found.tool_calls is not None
    (call,) = found.tool_calls
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Oslo", "days": 3}
    assert_row_is_exact(renderer, made, output)
    # The template writes the call as the model did.
    history = [*QUESTION, assistant_message(found), {"role": "user", "content": "And now?"}]
    again = renderer.decode(renderer.render(history, WEATHER, thinking=True))
    assert output.partition("</think>\n\n")[2] in again
    assert "I should look." not in again


def test_truncated_thinking(renderer: ChatRenderer) -> None:
    output = "The sum is two plus two, which"
    made = generation(renderer, ids(renderer, output))
    assert reason(renderer, made) == "truncated"
    found = parts(renderer, made)
    assert (found.reasoning_content, found.content) == (output, "")
    assert found.reasoning_tokens == len(made.output_ids)
    assert_row_is_exact(renderer, made, output)


def test_thinking_that_never_closed(renderer: ChatRenderer) -> None:
    made = generation(renderer, ids(renderer, "The sum is 4.<|im_end|>"))
    assert reason(renderer, made) == "no_answer"


def test_two_closings(renderer: ChatRenderer) -> None:
    output = "The sum is 4.\n</think>\n\nIt is 4.\n</think>\n\nYes, 4.<|im_end|>"
    made = generation(renderer, ids(renderer, output))
    assert made.output_ids.count(CLOSE) == 2
    assert reason(renderer, made) == "bad_markup"
    found = parts(renderer, made)
    assert found.reasoning_content == "The sum is 4."
    assert found.content == "It is 4.\n</think>\n\nYes, 4."
    assert_row_is_exact(renderer, made, output)


def test_characters_that_are_split_across_tokens(renderer: ChatRenderer) -> None:
    pieces = ids(renderer, SPLIT)
    assert len(pieces) > len(SPLIT)
    assert all("\ufffd" in renderer.decode([piece]) for piece in pieces[:2])
    output = f"{SPLIT}\n</think>\n\n{SPLIT}<|im_end|>"
    made = generation(renderer, ids(renderer, output))
    assert reason(renderer, made) is None
    found = parts(renderer, made)
    assert (found.reasoning_content, found.content) == (SPLIT, SPLIT)
    assert_row_is_exact(renderer, made, output)


def test_an_answer_cut_inside_a_character_keeps_its_ids(renderer: ChatRenderer) -> None:
    whole = ids(renderer, f"x\n</think>\n\n{SPLIT}")
    made = generation(renderer, whole[:-1])
    assert reason(renderer, made) == "truncated"
    found = parts(renderer, made)
    assert found.content.startswith(SPLIT[:2])
    assert found.content.endswith("\ufffd")
    messages = [*QUESTION, assistant_message(found)]
    (row,) = rows_of(sample_row(Prompt(0, "p", QUESTION), messages, [made], 0, 1))
    assert row.input_ids[row.prompt_tokens :] == whole[:-1]


def test_think_tags_that_the_user_wrote_are_no_boundary(renderer: ChatRenderer) -> None:
    asked = [{"role": "user", "content": "What does </think> mean?"}]
    prompt = renderer.render(asked, None, thinking=True)
    assert prompt.count(CLOSE) == 1
    output = ids(renderer, "A tag.\n</think>\n\nIt ends thinking.<|im_end|>")
    made = Generation(prompt, output, "stop", matched=END)
    assert reason(renderer, made) is None
    assert parts(renderer, made).content == "It ends thinking."
