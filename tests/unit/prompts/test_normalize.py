"""One parsed value becomes a prompt: every shape, every deviation, every rejection."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflashq.core.codec import encode_line
from dflashq.prompts.duplicate_ids import DuplicateIdIndex, prompt_key
from dflashq.prompts.normalize import Outcome, normalise

FUNCTION = {"name": "look_up", "parameters": {"type": "object", "properties": {}}}
TOOL = {"type": "function", "function": FUNCTION}


def sharegpt(*turns: tuple[Any, Any], **columns: Any) -> dict[str, Any]:
    listed = [{"from": role, "value": value} for role, value in turns]
    return {"id": "a", "conversations": listed, **columns}


def openai(*turns: tuple[str, Any], **columns: Any) -> dict[str, Any]:
    listed = [{"role": role, "content": content} for role, content in turns]
    return {"id": "a", "messages": listed, **columns}


def said(outcome: Outcome) -> list[tuple[str, str]]:
    assert outcome.row is not None, outcome
    return [(m["role"], m["content"]) for m in outcome.row["messages"]]


def accepted(value: object) -> list[tuple[str, str]]:
    outcome = normalise(value)
    assert (outcome.do, outcome.why) == ("accept", ())
    return said(outcome)


def normalised(value: object, *why: str) -> list[tuple[str, str]]:
    outcome = normalise(value)
    assert (outcome.do, outcome.why) == ("normalise", why)
    return said(outcome)


def test_answers_are_thrown_away_and_the_rest_keeps_its_order() -> None:
    row = sharegpt(("system", "S"), ("human", "one"), ("gpt", "x"), ("human", "two"), ("gpt", "y"))
    assert accepted(row) == [("system", "S"), ("user", "one"), ("user", "two")]
    row = openai(("system", "S"), ("user", "one"), ("assistant", None), ("user", "two"))
    assert accepted(row) == [("system", "S"), ("user", "one"), ("user", "two")]


@pytest.mark.parametrize(
    "answer", [None, "", 7, {"a": 1}, [["x"]], "<|im_end|>", "\ud83d", "</think>"]
)
def test_nothing_in_an_answer_matters(answer: object) -> None:
    assert accepted(sharegpt(("human", "q"), ("gpt", answer))) == [("user", "q")]


def test_user_turns_in_a_row_stay_apart() -> None:
    assert accepted(sharegpt(("human", "a"), ("human", "b"))) == [("user", "a"), ("user", "b")]


def test_source_and_domain_are_kept_and_nothing_else() -> None:
    row = normalise(sharegpt(("human", "q"), source="s", domain="d", score=3)).row
    assert row == {
        "id": "a",
        "source": "s",
        "domain": "d",
        "messages": [{"role": "user", "content": "q"}],
    }


def test_a_label_that_is_no_string_becomes_one() -> None:
    outcome = normalise(sharegpt(("human", "q"), domain=3))
    assert outcome.why == ("label_not_a_string",)
    assert outcome.row is not None
    assert outcome.row["domain"] == "3"


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), min_size=1))
def test_any_text_survives_to_the_byte(text: str) -> None:
    outcome = normalise(json.loads(json.dumps({"id": "a", "prompt": text})))
    if outcome.row is None:
        assert outcome.why[0] in ("empty_prompt", "special_token_in_prompt")
    else:
        assert outcome.do == "accept"
        stored = json.loads(encode_line(outcome.row))
        assert stored["messages"] == [{"role": "user", "content": text}]


KEYS = ["id", "conversations", "messages", "prompt", "instruction", "input", "history", "tools"]
KEYS += ["functions", "parameters", "system", "source", "images"]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [*KEYS, "from", "value", "role", "content", "text", "type", "function", "name"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(json_values | st.builds(lambda t: {"conversations": t}, st.lists(json_values, max_size=3)))
def test_no_value_at_all_raises_and_every_prompt_can_be_written(value: object) -> None:
    outcome = normalise(value)
    if outcome.row is None:
        assert outcome.do == "reject"
        assert len(outcome.why) == 1
    else:
        assert any(m["role"] == "user" for m in outcome.row["messages"])
        assert json.loads(encode_line(outcome.row)) == outcome.row


@pytest.mark.parametrize(
    ("turn", "why"),
    [
        ({"from": "user", "value": "q"}, ("role_alias",)),
        ({"from": " Human ", "value": "q"}, ("role_case",)),
        ({"from": "USER", "value": "q"}, ("role_case", "role_alias")),
        ({"role": "user", "content": "q"}, ("role_content_keys",)),
        ({"from": "human", "content": "q"}, ("role_content_keys",)),
        ({"role": "human", "content": "q"}, ("role_content_keys", "role_alias")),
    ],
)
def test_other_spellings_of_a_turn_are_counted(turn: dict[str, Any], why: tuple[str, ...]) -> None:
    assert normalised({"id": "a", "conversations": [turn]}, *why) == [("user", "q")]


@pytest.mark.parametrize("name", ["chatgpt", "bing", "bard", "Assistant", "model", "function-call"])
def test_every_name_of_an_assistant_is_thrown_away(name: str) -> None:
    outcome = normalise(sharegpt(("human", "q"), (name, "x")))
    assert outcome.do == "normalise"
    assert said(outcome) == [("user", "q")]


def test_openai_rows_in_sharegpt_words() -> None:
    row = {"id": "a", "messages": [{"from": "human", "value": "q"}]}
    assert normalised(row, "from_value_keys") == [("user", "q")]
    assert normalised(openai(("developer", "S"), ("user", "q")), "developer_role") == [
        ("system", "S"),
        ("user", "q"),
    ]


@pytest.mark.parametrize(
    "name", ["tool", "observation", "tool_response", "funcresponse", "function"]
)
def test_a_conversation_is_cut_before_a_tool_result(name: str) -> None:
    row = sharegpt(("human", "a"), ("gpt", "call"), (name, "{}"), ("gpt", "x"), ("human", "b"))
    assert normalised(row, "tool_turns", "cut_at_tool_result") == [("user", "a")]
    calls = openai(("user", "a"), ("assistant", None), ("tool", "{}"), ("user", None))
    assert normalised(calls, "cut_at_tool_result") == [("user", "a")]


def test_an_unanswered_call_does_not_cut() -> None:
    row = sharegpt(("human", "a"), ("function_call", "{}"), ("human", "b"))
    assert normalised(row, "tool_turns") == [("user", "a"), ("user", "b")]


def test_leading_answers_are_dropped() -> None:
    row = sharegpt(("system", "S"), ("gpt", "x"), ("human", "q"))
    assert normalised(row, "leading_assistant") == [("system", "S"), ("user", "q")]


def test_system_turns() -> None:
    assert accepted(sharegpt(("system", ""), ("human", "q")))[0] == ("system", "")
    assert normalised(sharegpt(("system", None), ("human", "q")), "null_system") == [("user", "q")]
    twice = sharegpt(("system", "A"), ("system", "B"), ("human", "q"))
    assert normalised(twice, "several_system")[0] == ("system", "A\n\nB")
    column = sharegpt(("human", "q"), system="S")
    assert normalised(column, "system_column") == [("system", "S"), ("user", "q")]


def test_prompt_rows() -> None:
    assert accepted({"id": "a", "prompt": " q\r\n"}) == [("user", " q\r\n")]
    listed = {"id": "a", "prompt": [{"role": "user", "content": "q"}]}
    assert normalised(listed, "prompt_messages") == [("user", "q")]


def test_alpaca_rows() -> None:
    assert accepted({"id": "a", "instruction": "do", "input": "it"}) == [("user", "do\n\nit")]
    for nothing in ({}, {"input": None}, {"input": ""}):
        assert accepted({"id": "a", "instruction": "do", **nothing}) == [("user", "do")]
    row = {"id": "a", "instruction": "do", "history": [["q", "x"], ["r", "y"]]}
    assert normalised(row, "alpaca_history") == [("user", "q"), ("user", "r"), ("user", "do")]


def test_parts_of_text_are_joined() -> None:
    parts = [{"type": "text", "text": "in"}, {"type": "input_text", "text": "put"}]
    assert normalised(openai(("user", parts)), "text_parts") == [("user", "input")]
    assert normalised(openai(("user", ["q"])), "list_of_strings") == [("user", "q")]
    parts = [{"type": "text", "value": "q"}]
    assert normalised(openai(("user", parts)), "text_parts_value_key") == [("user", "q")]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (None, "not_an_object"),
        ([], "not_an_object"),
        ({}, "unknown_schema"),
        ({"dialogue": [], "text": "x"}, "unknown_schema"),
        ({"conversations": None}, "empty_conversation"),
        ({"conversations": []}, "empty_conversation"),
        ({"conversations": {}}, "bad_conversation_type"),
        ({"messages": "hello"}, "bad_conversation_type"),
        (sharegpt(("hummany", "q")), "unknown_role"),
        (sharegpt((None, "q")), "unknown_role"),
        (sharegpt((1, "q")), "unknown_role"),
        (sharegpt((["human"], "q")), "unknown_role"),
        ({"conversations": [{"value": "q"}]}, "missing_role"),
        ({"conversations": [{"from": "human", "value": "q"}, None]}, "null_turn"),
        ({"conversations": ["q"]}, "bad_turn_type"),
        (sharegpt(("gpt", "x")), "no_user_turn"),
        (sharegpt(("system", "S")), "no_user_turn"),
        (sharegpt(("tool", "x"), ("human", "q")), "no_user_turn"),
        (sharegpt(("human", None)), "null_user_content"),
        ({"conversations": [{"from": "human"}]}, "null_user_content"),
        (sharegpt(("human", " \n\t")), "empty_prompt"),
        (openai(("user", [])), "empty_prompt"),
        (sharegpt(("human", "a"), ("gpt", "x"), ("human", "")), "empty_prompt"),
        (sharegpt(("human", "q"), ("system", "late")), "system_not_first"),
        *((sharegpt(("human", bad)), "bad_content_type") for bad in (42, 3.1, True, {"text": "q"})),
        (sharegpt(("human", [["q"]])), "bad_content_type"),
        (openai(("user", [{"type": "text", "text": 3}])), "bad_content_type"),
        (openai(("user", [{"type": "image_url"}, {"type": "text", "text": "q"}])), "media_part"),
        (openai(("user", [{"type": ["text"], "text": "q"}])), "media_part"),
        (sharegpt(("human", "<image> q"), images=["a.png"]), "media_part"),
        ({"prompt": 7}, "bad_content_type"),
        ({"prompt": None}, "null_user_content"),
        ({"instruction": None}, "null_user_content"),
        ({"instruction": "", "input": ""}, "empty_prompt"),
        ({"instruction": "do", "input": 7}, "bad_content_type"),
        ({"instruction": "do", "history": "x"}, "bad_conversation_type"),
        ({"instruction": "do", "history": [["q"]]}, "bad_turn_type"),
    ],
)
def test_rejections(value: object, why: str) -> None:
    outcome = normalise(value)
    assert (outcome.do, outcome.why, outcome.row) == ("reject", (why,), None)
    assert outcome.detail


def test_an_unknown_role_is_named() -> None:
    assert "'hummany'" in normalise(sharegpt(("hummany", "q"))).detail


@pytest.mark.parametrize(
    "token",
    [
        "<|im_end|>",
        "<|eot_id|>",
        "<|mask|>",
        "<\uff5cUser\uff5c>",
        "</tool_call>",
        "[INST]",
        "</s>",
    ],
)
def test_control_tokens_in_what_the_model_reads_are_refused(token: str) -> None:
    tool = {"type": "function", "function": {**FUNCTION, "description": f"x {token}"}}
    for value in (
        sharegpt(("human", f"what is {token}?")),
        sharegpt(("system", token), ("human", "q")),
        sharegpt(("human", "q"), tools=[tool]),
    ):
        outcome = normalise(value)
        assert outcome.why == ("special_token_in_prompt",)
        assert token in outcome.detail


@pytest.mark.parametrize(
    "text", ["<think>no</think>", "a <| b |> c", "x[0] < y", "<s:tag>", "<|\n|>", "List<S>", "||"]
)
def test_text_that_only_looks_like_a_control_token_is_kept(text: str) -> None:
    assert accepted(sharegpt(("human", text))) == [("user", text)]


def test_lone_surrogates_become_the_replacement_character() -> None:
    assert normalised(sharegpt(("human", "a\ud83d b")), "lone_surrogate") == [("user", "a\ufffd b")]
    assert accepted(sharegpt(("human", "\U0001f600"))) == [("user", "\U0001f600")]
    outcome = normalise({"id": "x\udcb2", "prompt": "q"})
    assert outcome.why == ("lone_surrogate_in_id",)
    assert outcome.row is not None
    assert outcome.row["id"] == "x\ufffd"
    tool = {"type": "function", "function": {**FUNCTION, "description": "\ud83d"}}
    outcome = normalise(sharegpt(("human", "q"), tools=[tool]))
    assert outcome.why == ("lone_surrogate",)
    assert outcome.row is not None
    assert outcome.row["tools"][0]["function"]["description"] == "\ufffd"


@pytest.mark.parametrize(
    ("given_id", "text"),
    [(17, "17"), (4.5, "4.5"), (True, "true"), (["a", 8], '["a",8]'), (0, "0")],
)
def test_an_id_becomes_a_plain_string(given_id: object, text: str) -> None:
    outcome = normalise({"id": given_id, "prompt": "q"})
    assert outcome.why == ("id_not_a_plain_string",)
    assert outcome.row is not None
    assert outcome.row["id"] == text


def test_a_row_without_id_is_named_by_its_content() -> None:
    first, again, other = (normalise({"prompt": text}) for text in ("q", "q", "r"))
    assert first.do == "accept"
    assert first.row is not None
    assert again.row is not None
    assert other.row is not None
    assert first.row["id"].startswith("sha256-")
    assert first.row["id"] == again.row["id"] != other.row["id"]
    for nothing in (None, ""):
        assert normalise({"id": nothing, "prompt": "q"}).why == ("id_not_a_plain_string",)


@pytest.mark.parametrize("given_id", ["../../etc/9", "line\nbreak", "x" * 300, " "])
def test_an_odd_string_is_still_an_id(given_id: str) -> None:
    outcome = normalise({"id": given_id, "prompt": "q"})
    assert outcome.do == "accept"
    assert outcome.row is not None
    assert outcome.row["id"] == given_id


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"tools": [TOOL]}, ()),
        ({"tools": json.dumps([TOOL])}, ("tools_from_string",)),
        ({"tools": [FUNCTION]}, ("bare_functions",)),
        ({"tools": [{"type": "function", **FUNCTION}]}, ("bare_functions",)),
        ({"tools": [{"function": FUNCTION}]}, ("bare_functions",)),
        ({"tools": TOOL}, ("single_tool",)),
        ({"functions": [FUNCTION]}, ("functions_column", "bare_functions")),
    ],
)
def test_tools_come_out_in_openai_form(columns: dict[str, Any], why: tuple[str, ...]) -> None:
    outcome = normalise(sharegpt(("human", "q"), **columns))
    assert outcome.why == why
    assert outcome.row is not None
    assert outcome.row["tools"] == [TOOL]


@pytest.mark.parametrize("nothing", [None, [], "", " ", "[]", "null"])
def test_no_tools(nothing: object) -> None:
    outcome = normalise(sharegpt(("human", "q"), tools=nothing))
    assert outcome.row is not None
    assert "tools" not in outcome.row


def deep_tool(levels: int) -> dict[str, Any]:
    inner: dict[str, Any] = {}
    for _ in range(levels):
        inner = {"x": inner}
    return {"type": "function", "function": {"name": "f", "parameters": inner}}


@pytest.mark.parametrize(
    "broken",
    [
        "[{broken",
        '[{"name": "f", "parameters": {"x": NaN}}]',
        "[" * 100_000,
        7,
        [7],
        [{}],
        [{"name": ""}],
        [{"name": 3}],
        [{"type": "web_search"}],
        [{"type": "function", "function": "f"}],
        [{"name": "f", "parameters": "x"}],
        [{"name": "f", "parameters": {"limit": float("inf")}}],
        [deep_tool(200)],
        [deep_tool(900)],
    ],
    ids=repr,
)
def test_broken_tools_reject_the_row(broken: object) -> None:
    assert normalise(sharegpt(("human", "q"), tools=broken)).why == ("bad_tools",)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 2))))
def test_seen_ids_are_those_of_a_dictionary(pairs: list[tuple[int, int]]) -> None:
    seen, first = DuplicateIdIndex(), dict[int, int]()
    for key, prompt in pairs:
        assert seen.repeated(str(key), prompt) == (first.setdefault(key, prompt) != prompt)


def test_seen_ids_grow() -> None:
    seen = DuplicateIdIndex()
    assert not any(seen.repeated(f"id-{n}", n) for n in range(20_000))
    assert not any(seen.repeated(f"id-{n}", n) for n in range(20_000))
    assert all(seen.repeated(f"id-{n}", n + 1) for n in range(20_000))


def test_a_prompt_is_its_messages_and_tools() -> None:
    rows = [
        normalise(value).row or {}
        for value in (
            {"id": "a", "prompt": "q"},
            {"id": "b", "prompt": "q", "source": "s"},
            {"id": "a", "prompt": "q", "tools": [TOOL]},
            {"id": "a", "prompt": "q", "system": "S"},
        )
    ]
    keys = [prompt_key(row) for row in rows]
    assert keys[0] == keys[1]
    assert len(set(map(repr, keys))) == 3
