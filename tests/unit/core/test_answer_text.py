"""From exact ids to reasoning, content and tool calls."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflashq.core.generations.answer_text import AnswerParts, parse_tool_calls, split_answer
from dflashq.core.generations.segments import OutputSegments
from dflashq.core.generations.special_tokens import SpecialTokens
from dflashq.core.token_ids import Ids, id_array

OPEN, CLOSE, END = 300, 301, 302
NAMES = {OPEN: b"<think>", CLOSE: b"</think>", END: b"<end>"}
MARKERS = SpecialTokens(frozenset({END}), OPEN, CLOSE, frozenset(), 303)
PLAIN = SpecialTokens(frozenset({END}), None, None, frozenset(), 303)


def decode(ids: Ids) -> str:
    """Ids below 256 are bytes; a run of ids is decoded as a whole, as tokenizers do."""
    raw = b"".join(NAMES.get(int(i)) or bytes([i]) for i in ids)
    return raw.decode("utf-8", errors="replace")


def ids_of(text: str) -> list[int]:
    return list(text.encode())


def split(
    ids: list[int], *, thinking: bool = True, markers: SpecialTokens = MARKERS
) -> AnswerParts:
    return split_answer(OutputSegments(id_array(ids), markers, thinking=thinking), decode)


def test_reasoning_and_content_part_at_the_id() -> None:
    ids = [*ids_of("think a bit\n"), CLOSE, *ids_of("\n\nHello."), END]
    assert split(ids) == AnswerParts("think a bit", "Hello.", None, 13)


def test_only_the_separators_of_the_template_are_removed() -> None:
    ids = [*ids_of("\n  why\n\n"), CLOSE, *ids_of("\n\n\n    code \n"), END]
    parts = split(ids)
    assert parts.reasoning_content == "\n  why\n"
    assert parts.content == "\n    code \n"


def test_a_think_tag_of_the_models_own_is_taken_off() -> None:
    ids = [OPEN, *ids_of("\nhm\n"), CLOSE, *ids_of("yes"), END]
    assert split(ids) == AnswerParts("hm", "yes", None, 6)


def test_the_words_of_the_tag_are_not_the_tag() -> None:
    ids = [*ids_of("say </think> twice"), CLOSE, *ids_of("</think>"), END]
    parts = split(ids)
    assert parts.reasoning_content == "say </think> twice"
    assert parts.content == "</think>"


def test_the_first_of_two_closing_ids_is_the_boundary() -> None:
    ids = [*ids_of("a"), CLOSE, *ids_of("b"), CLOSE, *ids_of("c"), END]
    assert split(ids) == AnswerParts("a", "b</think>c", None, 2)


def test_truncated_thinking_is_all_reasoning() -> None:
    assert split(ids_of("and so on\n")) == AnswerParts("and so on", "", None, 10)
    assert split([*ids_of("and"), END]) == AnswerParts("and", "", None, 3)


def test_truncated_answer_keeps_its_content() -> None:
    assert split([*ids_of("a"), CLOSE, *ids_of("\n\nThe ans")]).content == "The ans"


def test_without_thinking_there_is_no_reasoning() -> None:
    ids = [*ids_of("\n\nHello."), END]
    assert split(ids, thinking=False) == AnswerParts(None, "\n\nHello.", None, 0)
    assert split(ids, markers=PLAIN) == AnswerParts(None, "\n\nHello.", None, 0)


def test_nothing_at_all() -> None:
    assert split([]) == AnswerParts("", "", None, 0)
    assert split([END], thinking=False) == AnswerParts(None, "", None, 0)
    assert split([CLOSE, END]) == AnswerParts("", "", None, 1)


def test_a_character_split_over_ids_is_decoded_in_one_run() -> None:
    ids = [*ids_of("ж🙂"), CLOSE, *ids_of("日本🙂"), END]
    assert split(ids) == AnswerParts("ж🙂", "日本🙂", None, 7)


@given(st.text(max_size=40), st.text(max_size=40).filter(lambda t: "<tool_call>" not in t))
def test_no_word_is_lost(thought: str, answer: str) -> None:
    parts = split([*ids_of(thought + "\n"), CLOSE, *ids_of("\n\n" + answer), END])
    assert (parts.reasoning_content, parts.content) == (thought, answer)


# -- tool calls ----------------------------------------------------------------------------------

HERMES = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": "é"}}\n</tool_call>'
XML = (
    "<tool_call>\n<function=write>\n<parameter=path>\n/a b\n</parameter>\n"
    "<parameter=text>\nline 1\n\n  line 2\n</parameter>\n</function>\n</tool_call>"
)


def test_a_hermes_call() -> None:
    content, calls = parse_tool_calls(f"Let me see.\n\n{HERMES}")
    assert content == "Let me see."
    assert calls is not None
    assert calls[0]["id"] == "call_0"
    assert calls[0]["type"] == "function"
    assert calls[0]["function"]["name"] == "add"
    assert json.loads(calls[0]["function"]["arguments"]) == {"a": 1, "b": "é"}


def test_an_xml_call_keeps_inner_newlines() -> None:
    content, calls = parse_tool_calls(XML)
    assert content == ""
    assert calls is not None
    assert calls[0]["function"]["name"] == "write"
    arguments = json.loads(calls[0]["function"]["arguments"])
    assert arguments == {"path": "/a b", "text": "line 1\n\n  line 2"}


def test_several_calls_and_text_around_them() -> None:
    content, calls = parse_tool_calls(f"one\n{HERMES}\n{XML}\ntwo")
    assert content == "one\ntwo"
    assert calls is not None
    assert [c["id"] for c in calls] == ["call_0", "call_1"]
    assert [c["function"]["name"] for c in calls] == ["add", "write"]


def test_a_call_without_parameters() -> None:
    _, calls = parse_tool_calls("<tool_call><function=now></function></tool_call>")
    assert calls is not None
    assert calls[0]["function"] == {"name": "now", "arguments": "{}"}


def test_schemas_give_xml_parameters_their_types() -> None:
    properties = {
        "n": {"type": "integer"},
        "s": {"type": "string"},
        "o": {"type": "object"},
        "bad": {"type": "integer"},
    }
    tools = [
        {"type": "function", "function": {"name": "f", "parameters": {"properties": properties}}}
    ]
    values = {"n": "3", "s": "4", "o": '{"k": [1]}', "bad": "three", "unknown": "5"}
    inner = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in values.items())
    _, calls = parse_tool_calls(
        f"<tool_call>\n<function=f>\n{inner}</function>\n</tool_call>", tools
    )
    assert calls is not None
    assert json.loads(calls[0]["function"]["arguments"]) == {
        "n": 3,
        "s": "4",
        "o": {"k": [1]},
        "bad": "three",
        "unknown": "5",
    }


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>\n{"name": "add", "arguments": {"a": 1}',
        '<tool_call>{"name": "add", "arguments": {"a": 1}</tool_call>',
        '<tool_call>{"name": "add", "arguments": "none"}</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"x": NaN}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"x": "\\ud83d"}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"x": ' + "[" * 100_000 + "}}</tool_call>",
        "<tool_call>add(1, 2)</tool_call>",
        "<tool_call><function=f><parameter=a>1</function></tool_call>",
        "<tool_call><function=f>stray</function></tool_call>",
        "<tool_call><function=f><parameter=a>1</parameter><parameter=a>2</parameter></function></tool_call>",
        f"{HERMES}\n<tool_call>\n{{",
        f"{HERMES}</tool_call>",
        f"<tool_call>{HERMES}",
    ],
)
def test_a_broken_call_stays_in_the_content(text: str) -> None:
    assert parse_tool_calls(f"Now:\n{text}") == (f"Now:\n{text}", None)


def test_a_call_inside_thinking_is_thinking() -> None:
    ids = [*ids_of(HERMES), CLOSE, *ids_of("\n\nDone."), END]
    assert split(ids) == AnswerParts(HERMES, "Done.", None, len(ids_of(HERMES)) + 1)


def test_a_call_after_thinking() -> None:
    parts = split([*ids_of("use it\n"), CLOSE, *ids_of(f"\n\n{XML}"), END])
    assert parts.content == ""
    assert parts.tool_calls is not None
    assert len(parts.tool_calls) == 1
