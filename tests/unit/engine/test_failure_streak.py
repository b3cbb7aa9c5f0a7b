"""Which failures are the engine's: those that hit whatever it is asked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflashq.engine.failure_streak import LEAST_S, LIMITED_STREAK, STREAK, FailureStreak


def failed(
    streak: FailureStreak, times: int, *, senders: int, over_s: float, retry_after_s: float = 0.0
) -> float:
    """So many failures in turns, spread over `over_s`; when the last of them came."""
    for number in range(times):
        now = over_s * number / max(1, times - 1)
        streak.note_failure(
            now, number % senders, f"failure {number}", took_s=0.1, retry_after_s=retry_after_s
        )
    return over_s


def test_what_fails_for_all_is_the_engine() -> None:
    streak = FailureStreak()
    now = failed(streak, STREAK, senders=STREAK, over_s=LEAST_S)
    assert streak.hits_everything(now, [])
    assert streak.words == f"failure {STREAK - 1}"


def test_one_prompt_alone_never_condemns_the_engine() -> None:
    streak = FailureStreak()
    now = failed(streak, 100, senders=1, over_s=1000.0)
    assert not streak.hits_everything(now, [])


def test_a_moment_is_too_short() -> None:
    """A connection that is lost for all at once is no answer of the engine."""
    streak = FailureStreak()
    now = failed(streak, 256, senders=256, over_s=LEAST_S / 2)
    assert not streak.hits_everything(now, [])


def test_a_request_that_outlives_the_failures_is_being_served() -> None:
    streak = FailureStreak()
    now = failed(streak, 50, senders=25, over_s=10.0)
    assert not streak.hits_everything(now, [0.0, 9.9])
    assert streak.hits_everything(now, [9.9])


def test_a_server_that_names_a_time_means_everybody() -> None:
    """Also while it goes on with what it had accepted before."""
    streak = FailureStreak()
    now = failed(streak, LIMITED_STREAK, senders=2, over_s=0.1, retry_after_s=30.0)
    assert streak.hits_everything(now, [-100.0])
    assert streak.retry_after_s == 30.0


def test_an_answer_ends_the_streak() -> None:
    streak = FailureStreak()
    now = failed(streak, 100, senders=10, over_s=60.0)
    streak.note_answer()
    assert (streak.answered, streak.words) == (1, "")
    assert not streak.hits_everything(now, [])


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.floats(0, 5)), max_size=60))
def test_nothing_counts_that_came_before_an_answer(steps: list[tuple[bool, int, float]]) -> None:
    streak, fresh, now = FailureStreak(), FailureStreak(), 0.0
    for answered, sender, gap_s in steps:
        now += gap_s
        if answered:
            streak.note_answer()
            fresh = FailureStreak()
        else:
            for each in (streak, fresh):
                each.note_failure(now, sender, "no", took_s=0.1, retry_after_s=0.0)
        assert streak.hits_everything(now, []) == fresh.hits_everything(now, [])


@pytest.mark.parametrize("running", [[], [0.0]])
def test_few_failures_need_more_time(running: list[float]) -> None:
    streak = FailureStreak()
    now = failed(streak, 3, senders=2, over_s=LEAST_S)
    assert not streak.hits_everything(now, running)
    streak.note_failure(3 * LEAST_S, 1, "no", took_s=0.1, retry_after_s=0.0)
    assert streak.hits_everything(3 * LEAST_S, [])
