"""The guard's judgement: when a canary passes, when a window objects."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dflashq.core.model import Guard
from dflashq.core.quality_guard import JudgedPrompt, RejectionWindow, canary_objection

GUARD = Guard(canary=48, max_rejected=0.3, min_median_tokens=16, window=20)


def prompts(good: int, bad: int, tokens: int = 100) -> list[JudgedPrompt]:
    accepted = [JudgedPrompt(f"index {n}", None, tokens) for n in range(good)]
    return accepted + [JudgedPrompt(f"index {good + n}", "stub", 6) for n in range(bad)]


def test_a_canary_passes_at_its_limit_and_not_beyond() -> None:
    assert canary_objection(prompts(7, 3), GUARD) == ""
    sentence = canary_objection(prompts(6, 4), GUARD)
    assert "40% of its 10 prompts were rejected, at most 30%" in sentence
    assert "stub 4" in sentence
    assert "index 6 (stub)" in sentence


def test_a_canary_of_short_answers_does_not_pass_though_none_is_rejected() -> None:
    sentence = canary_objection(prompts(10, 0, tokens=6), GUARD)
    assert "median answer has 6 tokens, at least 16 are expected" in sentence


def test_what_a_person_tolerates_passes() -> None:
    assert canary_objection(prompts(1, 9), GUARD, tolerated=1.0) == ""


def test_a_canary_of_which_all_are_rejected_does_not_pass_by_its_length() -> None:
    assert canary_objection(prompts(0, 5), GUARD) != ""


def test_a_window_objects_once_and_begins_anew() -> None:
    window = RejectionWindow(GUARD)
    sentences = [window.objection(one, 0.0) for one in prompts(0, 7)]
    assert sentences[:6] == [""] * 6
    assert "100% of the last 7 prompts were rejected" in sentences[6]
    assert [window.objection(one, 0.0) for one in prompts(0, 6)] == [""] * 6


@given(st.lists(st.booleans(), max_size=200))
def test_a_window_objects_exactly_when_too_many_of_the_last_are_rejected(
    bad: list[bool],
) -> None:
    window, last = RejectionWindow(GUARD), list[bool]()
    for number, rejected in enumerate(bad):
        last = [*last, rejected][-GUARD.window :]
        one = JudgedPrompt(f"index {number}", "stub" if rejected else None, 50)
        objected = window.objection(one, 0.0) != ""
        assert objected == (sum(last) > GUARD.max_rejected * GUARD.window)
        if objected:
            last = []
