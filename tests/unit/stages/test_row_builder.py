"""Rows from kept work: what the model said turn by turn, whoever kept it and however."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from dflashq.core import codec
from dflashq.core.model import Generation, Prompt, RunSpec, Verdict, kept_slot
from dflashq.engine.chat_renderer import ChatRenderer
from dflashq.engine.request import request_ids
from dflashq.ledger.kept_codec import encode_generation, generation_field
from dflashq.stages.generate import row_builder
from dflashq.stages.generate.commit import encoded
from dflashq.stages.generate.row_builder import RowBuilder, RowError
from dflashq.stages.generate.settled_prompt import SettledPrompt
from tests.support.tiny_tokenizer import save_tiny_tokenizer

SPEC = RunSpec(model="m", revision="r", queue="q")
ONE = Prompt(7, "seven", [{"role": "user", "content": "Hi?"}], source="s", domain="chat")
TWO = Prompt(
    8,
    "eight",
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi?"},
        {"role": "user", "content": "And 猫?"},
    ],
)


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> ChatRenderer:
    return ChatRenderer(save_tiny_tokenizer(tmp_path_factory.mktemp("tiny")))


def said(renderer: ChatRenderer, text: str, times: int = 1) -> Generation:
    """A whole answer of the model, with its end token."""
    tokenizer = renderer._tokenizer
    ids = tokenizer.encode(text, add_special_tokens=False) * times
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    return Generation([1, 2, 3], [*ids, end], "stop", end, 2.0, 0.5, "e1", 9.25)


def row(
    renderer: ChatRenderer,
    one: SettledPrompt,
    drawn: dict[int, Generation],
    *,
    encoded: bool = False,
) -> dict[str, Any]:
    entries = {
        generation_field(one.index, number): encode_generation(made) if encoded else made
        for number, made in drawn.items()
    }
    composer = RowBuilder(renderer, SPEC, 3, {7: ONE, 8: TWO}, entries)
    line = composer.line(one)
    assert line.endswith(b"\n")
    assert composer.line(one) == line
    found: dict[str, Any] = json.loads(line)
    return found


@pytest.mark.parametrize("times", [1, 400])
@pytest.mark.parametrize("encoded", [False, True])
def test_a_sample_says_what_the_model_said(
    renderer: ChatRenderer, times: int, encoded: bool
) -> None:
    made = said(renderer, "why 猫\n</think>\n\nBecause.", times)
    one = SettledPrompt(7, Verdict(), {"reasoning_tokens": 5}, (0,))
    found = row(renderer, one, {0: made}, encoded=encoded)
    assert (found["index"], found["id"], found["attempt"]) == (7, "seven", 3)
    assert "reason" not in found
    [kept] = found["generations"]
    assert (kept["prompt_ids"], kept["output_ids"]) == ([1, 2, 3], made.output_ids)
    assert (found["usage"]["completion_tokens"], found["engine"]) == (len(made.output_ids), "e1")
    asked, answered = found["messages"]
    assert asked["content"] == "Hi?"
    assert answered["reasoning_content"] == "why 猫"
    assert answered["content"].startswith("Because.")


def test_every_answer_stands_behind_its_question(renderer: ChatRenderer) -> None:
    drawn = {
        kept_slot(0, 0): said(renderer, "a\n</think>\n\nfirst"),
        kept_slot(1, 1): said(renderer, "b\n</think>\n\nsecond"),
    }
    retried = ({"turn": 1, "reason": "stub", "detail": "0 ids"},)
    one = SettledPrompt(
        8, Verdict(), {"reasoning_tokens": 4}, (kept_slot(0, 0), kept_slot(1, 1)), (), retried
    )
    found = row(renderer, one, drawn)
    turns = [(m["role"], m["content"]) for m in found["messages"]]
    assert turns == [
        ("system", "Be brief."),
        ("user", "Hi?"),
        ("assistant", "first"),
        ("user", "And 猫?"),
        ("assistant", "second"),
    ]
    assert json.loads(found["retries"]) == list(retried)


def test_a_rejected_prompt_shows_the_answers_before_its_end(renderer: ChatRenderer) -> None:
    """A crash in between changes nothing: they are kept."""
    verdict = Verdict("too_long", "9 prompt tokens too many")
    one = SettledPrompt(8, verdict, {"reasoning_tokens": 2}, (kept_slot(0, 0),))
    found = row(
        renderer, one, {kept_slot(0, 0): said(renderer, "a\n</think>\n\nfirst")}, encoded=True
    )
    assert (found["reason"], found["detail"]) == ("too_long", "9 prompt tokens too many")
    assert [m["role"] for m in found["messages"]] == ["system", "user", "assistant", "user"]


def test_a_prompt_without_an_answer_has_a_row_too(renderer: ChatRenderer) -> None:
    one = SettledPrompt(7, Verdict("refused_input", "no"), {"reasoning_tokens": 0})
    found = row(renderer, one, {})
    assert (found["generations"], found["finish_reason"], found["engine"]) == ([], "", "")


def test_a_row_whose_work_is_gone_is_no_row(renderer: ChatRenderer) -> None:
    with pytest.raises(KeyError, match="7:0"):
        row(renderer, SettledPrompt(7, Verdict(), {"reasoning_tokens": 0}, (0,)), {})


def test_an_opening_ends_with_the_first_question() -> None:
    assert TWO.opening == TWO.messages[:2]
    assert ONE.opening == ONE.messages
    assert Prompt(1, "x", [{"role": "system", "content": "?"}]).opening == []


def test_request_ids_are_of_one_length_and_never_the_same() -> None:
    one, other = request_ids(), request_ids()
    drawn = [next(series) for _ in range(500) for series in (one, other)]
    assert len(set(drawn)) == len(drawn)
    assert {len(rid) for rid in drawn} == {36}


def test_an_answer_that_cannot_be_written_rejects_its_prompt_alone(renderer: ChatRenderer) -> None:
    """A bug in cutting one answer up killed the batch of a thousand."""

    def line(one: SettledPrompt) -> bytes:
        if one.index == 1 and one.verdict.accepted:
            raise RowError(1, ValueError("half a surrogate"))
        return f"{one.index}\n".encode()

    settled = [SettledPrompt(n, Verdict(), {}) for n in range(3)]
    rows, accepted, rejected = encoded(settled, line)
    assert codec.decompress(accepted) == b"0\n2\n"
    assert rejected is not None
    assert codec.decompress(rejected) == b"1\n"
    assert [one.reason for one in rows] == [None, "internal_error", None]
    assert "half a surrogate" in rows[1].verdict.detail


def test_a_rejected_prompt_has_a_row_whatever_its_answers_do(
    renderer: ChatRenderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*rest: object) -> None:
        raise ValueError("no parts")

    monkeypatch.setattr(row_builder, "split_answer", broken)
    drawn = {kept_slot(0, 0): said(renderer, "a\n</think>\n\nfirst")}
    one = SettledPrompt(7, Verdict(), {"reasoning_tokens": 0}, (kept_slot(0, 0),))
    with pytest.raises(RowError, match="ValueError: no parts"):
        row(renderer, one, drawn)
    found = row(renderer, replace(one, verdict=Verdict("internal_error", "x")), drawn)
    assert (found["index"], found["reason"], found["generations"]) == (7, "internal_error", [])
