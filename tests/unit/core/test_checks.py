"""Verdicts: a golden generation for each reason, and properties over random ones."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflashq.core.generations.checks import REASONS, _varied, distinct_share, judge, loop_period
from dflashq.core.generations.segments import OutputSegments
from dflashq.core.generations.special_tokens import SpecialTokens, blank_ids
from dflashq.core.model import Checks, Generation, Verdict
from dflashq.core.token_ids import id_array

START, OPEN, CLOSE, END, ALT_END, NEWLINE, BLANK_LINE = 1, 2, 3, 4, 5, 6, 7
MARKERS = SpecialTokens(
    end_ids=frozenset({END, ALT_END}),
    think_open=OPEN,
    think_close=CLOSE,
    template_ids=frozenset({START}),
    vocab_size=1000,
    blank_ids=frozenset({NEWLINE, BLANK_LINE}),
)
PLAIN = SpecialTokens(frozenset({END}), None, None, frozenset(), 1000)
OPENED = [START, 100, OPEN, NEWLINE]
UNOPENED = [START, 100]
SKIPPED = [START, 100, OPEN, BLANK_LINE, CLOSE, BLANK_LINE]
LIMIT = 2000

GOOD = [20, 21, 22, CLOSE, BLANK_LINE, 30, 31, END]
VARIED = list(range(10, 10 + 300))


def generation(
    ids: list[int], *, finish: str = "stop", matched: int | str | None = END, prompt: Any = OPENED
) -> Generation:
    return Generation(prompt, ids, finish, matched if finish == "stop" else None)


def verdict(
    made: Generation, *, thinking: bool = True, limit: int = LIMIT, **checks: Any
) -> Verdict:
    output = OutputSegments(made.output_array, MARKERS, thinking=thinking)
    got = judge(made, output, checks=Checks(**checks), max_new_tokens=limit)
    # With arrays of ids, as they are kept, it is judged alike.
    kept = made.with_origin("engine", 1.5)
    assert judge(kept, output, checks=Checks(**checks), max_new_tokens=limit) == got
    return got


@pytest.mark.parametrize(
    ("made", "thinking"),
    [
        (generation(GOOD), True),
        (generation([*GOOD[:-1], ALT_END], matched=ALT_END), True),
        (generation([OPEN, *GOOD], prompt=UNOPENED), True),
        (generation([30, 31, END], prompt=SKIPPED), False),
        (generation([CLOSE, BLANK_LINE, 30, END]), True),
        (generation([20, CLOSE, *VARIED, *VARIED[:200], END]), True),
        (generation([20, CLOSE, *[30] * 255, END]), True),
        (generation([OPEN, 20, CLOSE, 30, END], prompt=[OPEN, *[50] * 20, 51]), True),
    ],
)
def test_good_generations_are_accepted(made: Generation, thinking: bool) -> None:
    assert verdict(made, thinking=thinking) == Verdict()


@pytest.mark.parametrize(
    ("reason", "made", "thinking", "says"),
    [
        ("corrupt", generation([20, 21, END], matched="NaN happened"), True, "'NaN happened'"),
        ("corrupt", generation([END], matched="NaN happened"), True, "'NaN happened'"),
        ("corrupt", generation(GOOD, finish="abort"), True, "'abort'"),
        ("corrupt", generation([20, CLOSE, 1000, END]), True, "id 1000 at 2 of 4"),
        ("corrupt", generation([20, CLOSE, -1, END]), True, "id -1 at 2 of 4"),
        ("corrupt", generation([20, CLOSE, 30, 31]), True, "the last id is 31, but the stop is 4"),
        ("corrupt", generation([20, CLOSE, 30, ALT_END]), True, "last id is 5"),
        ("corrupt", generation([20, CLOSE, 30, 31], matched=31), True, "stopped at 31"),
        ("corrupt", generation([20, CLOSE, 30, END], matched=None), True, "stopped at None"),
        ("corrupt", generation([20, CLOSE, END, 30, END]), True, "end token 4 at 2"),
        ("empty", generation([]), True, "0 ids"),
        ("empty", generation([END]), True, "1 ids"),
        ("empty", generation([END], prompt=SKIPPED), False, "1 ids"),
        ("clamped", generation([20, 21], finish="length"), True, "cut at 2 ids"),
        ("truncated", generation([*VARIED, *[9] * 9], finish="length"), True, "309"),
        ("looping", generation([20, CLOSE, *[30, 31, 32] * 90, END]), True, "3 ids repeated 90"),
        (
            "looping",
            generation([20] * 309, finish="length"),
            True,
            "thinking ends in a piece of 1",
        ),
        ("looping", generation([*[20, 21] * 128, CLOSE, 30, END]), True, "thinking"),
        ("bad_markup", generation([20, OPEN, 21, CLOSE, 30, END]), True, "1 <think>"),
        ("bad_markup", generation([20, CLOSE, 30, CLOSE, 31, END]), True, "2 </think>"),
        ("bad_markup", generation([20, CLOSE, CLOSE, END]), True, "2 </think>"),
        (
            "bad_markup",
            generation([20, OPEN, CLOSE, 30, END], prompt=UNOPENED),
            True,
            "come first",
        ),
        ("bad_markup", generation([20, CLOSE, START, 30, END]), True, "the first is 1"),
        ("bad_markup", generation([20, CLOSE, 30, END], prompt=SKIPPED), False, "not asked for"),
        ("no_answer", generation([20, 21, 22, END]), True, "never closed in 3 ids"),
        ("no_answer", generation([CLOSE, END]), True, "0 ids of answer"),
        ("no_answer", generation([20, CLOSE, BLANK_LINE, NEWLINE, END]), True, "2 ids of answer"),
        ("no_answer", generation([BLANK_LINE, END], prompt=SKIPPED), False, "all whitespace"),
    ],
)
def test_each_reason(reason: str, made: Generation, thinking: bool, says: str) -> None:
    got = verdict(made, thinking=thinking, limit=309)
    assert got.reason == reason, got
    assert says in got.detail


def test_stub_is_what_the_run_calls_short() -> None:
    assert verdict(generation(GOOD), min_answer_tokens=2) == Verdict()
    got = verdict(generation(GOOD), min_answer_tokens=3)
    assert got == Verdict("stub", "2 ids of answer, at least 3 wanted")


def test_an_end_token_at_the_very_limit_is_still_truncated() -> None:
    assert verdict(generation(GOOD, finish="length"), limit=len(GOOD)).reason == "truncated"


def test_a_model_without_thinking_is_judged_by_its_answer() -> None:
    made = Generation([50], [30, 31, END], "stop", END)
    for thinking in (True, False):
        output = OutputSegments(made.output_array, PLAIN, thinking=thinking)
        assert judge(made, output, checks=Checks(), max_new_tokens=LIMIT) == Verdict()


def test_every_rule_has_a_described_reason() -> None:
    outside = {"refused_input", "too_long", "unrecorded"}
    outside |= {"engine_crash", "engine_error", "internal_error"}
    decided = {"corrupt", "empty", "clamped", "looping", "bad_markup", "truncated", "no_answer"}
    assert set(REASONS) == outside | decided | {"stub"}
    assert all(line and "\n" not in line for line in REASONS.values())


def test_blank_ids_of_a_vocabulary() -> None:
    vocabulary = {"ĊĊ": 1, "Ġ": 2, "ĠĠĉ": 3, "Ġa": 4, "▁": 5, "": 6, ".": 7, " \n": 8}
    assert blank_ids(vocabulary) == {1, 2, 3, 5, 8}


words = st.integers(10, 999)
spoken = st.lists(words, min_size=1, max_size=60)


@given(st.lists(words, max_size=60), spoken)
def test_well_formed_generations_are_accepted(thought: list[int], answer: list[int]) -> None:
    assert verdict(generation([*thought, CLOSE, *answer, END])) == Verdict()


@given(
    st.lists(st.integers(-2, 1005), max_size=40), st.sampled_from(["stop", "length"]), st.booleans()
)
def test_what_is_accepted_is_sound(ids: list[int], finish: str, thinking: bool) -> None:
    got = verdict(generation(ids, finish=finish), thinking=thinking)
    assert got.reason is None or got.reason in REASONS
    assert (got.detail == "") == got.accepted
    if got.accepted:
        assert finish == "stop"
        assert ids[-1] == END
        assert not {END, ALT_END, START, OPEN} & set(ids[:-1])
        assert ids.count(CLOSE) == (1 if thinking else 0)
        assert set(ids) <= set(range(1000))


@given(st.lists(words, min_size=1, max_size=64), st.lists(words, max_size=50), st.integers(0, 63))
def test_a_repeated_piece_is_found(piece: list[int], before: list[int], rest: int) -> None:
    # The piece may end anywhere: what is cut off is less than one more of it.
    tail = piece * (600 // len(piece) + 2) + piece[: rest % len(piece)]
    period = loop_period(id_array([*before, *tail]), Checks())
    assert 0 < period <= len(piece)


@given(st.lists(words, min_size=1, max_size=255))
def test_what_is_shorter_than_the_window_never_loops(ids: list[int]) -> None:
    assert loop_period(id_array(ids), Checks()) == 0


@given(st.permutations(list(range(10, 75))), st.integers(1, 64))
def test_one_other_id_ends_a_loop(piece: list[int], period: int) -> None:
    tail = piece[:period] * (600 // period + 2)
    assert loop_period(id_array([*tail, piece[64]]), Checks()) == 0
    assert loop_period(id_array(tail), Checks()) == period


@given(st.lists(st.integers(0, 6) | words, min_size=64, max_size=200), st.integers(1, 9))
def test_the_quick_look_never_lets_a_loop_pass(ids: list[int], ngram: int) -> None:
    known = Checks(ngram=ngram, ngram_window=64, ngram_min_distinct=0.5)
    if _varied(id_array(ids), known):
        assert distinct_share(ids, known) >= known.ngram_min_distinct
