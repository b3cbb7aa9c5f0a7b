"""Rates, what is left, and lengths of time in words."""

from __future__ import annotations

import pytest

from dflashq.core.estimates.rate import RateWindow, eta_s, in_words


def test_the_rate_over_the_window_only() -> None:
    window = RateWindow(10.0)
    assert window.per_s() is None
    window.add(0.0, 0)
    assert window.per_s() is None
    for second in range(1, 21):
        window.add(float(second), 100 * second if second <= 10 else 1000 + 10 * (second - 10))
    assert window.per_s() == 10.0


def test_a_rare_point_still_spans_the_window() -> None:
    window = RateWindow(10.0)
    window.add(0.0, 0)
    window.add(100.0, 500)
    assert window.per_s() == 5.0
    window.add(105.0, 550)
    assert window.per_s() == pytest.approx(550 / 105)


def test_an_amount_that_shrank_starts_anew() -> None:
    window = RateWindow(60.0)
    window.add(0.0, 9000)
    window.add(5.0, 9500)
    window.add(10.0, 40)
    assert window.per_s() is None
    window.add(20.0, 140)
    assert window.per_s() == 10.0


def test_no_rate_from_a_moment() -> None:
    window = RateWindow(60.0, least=15.0)
    window.add(0.0, 0)
    window.add(14.0, 140)
    assert window.per_s() is None
    window.add(15.0, 150)
    assert window.per_s() == 10.0
    still = RateWindow(60.0)
    still.add(3.0, 1)
    still.add(3.0, 2)
    assert still.per_s() is None


def test_what_is_left() -> None:
    # 100 prompts took 50,000 tokens; 900 more take 450,000, at 1,000 a second.
    assert eta_s(100, 1000, 50_000, 1000.0) == 450.0
    assert eta_s(1000, 1000, 0, 0.0) == 0.0


@pytest.mark.parametrize(("settled", "tokens", "per_s"), [(0, 0, 9.0), (5, 0, 9.0), (5, 50, 0.0)])
def test_what_is_left_is_not_known(settled: int, tokens: int, per_s: float) -> None:
    assert eta_s(settled, 10, tokens, per_s) is None


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-3, "0 s"),
        (0.4, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (3599, "59 min"),
        (3600, "1 h"),
        (11_100, "3 h 5 min"),
        (86_400, "1 d"),
        (187_200 + 59, "2 d 4 h"),
        (400 * 86_400, "400 d"),
    ],
)
def test_lengths_of_time(seconds: float, words: str) -> None:
    assert in_words(seconds) == words
