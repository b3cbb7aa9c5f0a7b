"""What a figure is worth: reached, missed, or not shown."""

from __future__ import annotations

from importlib import import_module

import pytest

from tests.benchmarks.__main__ import PARTS
from tests.benchmarks.dead_engine import bound_s
from tests.benchmarks.results import MISSED, NOT_SHOWN, REACHED, SKIPPED, Figure, conclusion, table
from tests.benchmarks.slow_engine_tail import ideal_and_floor


def figure(*values: float, goal: float = 0.98, at_least: bool = True) -> Figure:
    return Figure("busy", values, goal, at_least)


@pytest.mark.parametrize(
    ("values", "at_least", "verdict"),
    [
        ((0.99, 0.985), True, REACHED),
        ((0.99, 0.97), True, NOT_SHOWN),
        ((0.9, 0.97), True, MISSED),
        ((0.9, 0.97), False, REACHED),
        ((0.99, 0.97), False, NOT_SHOWN),
        ((1.2,), False, MISSED),
        ((), True, SKIPPED),
    ],
)
def test_a_goal_within_the_spread_is_not_shown(
    values: tuple[float, ...], at_least: bool, verdict: str
) -> None:
    assert figure(*values, at_least=at_least).verdict == verdict


@pytest.mark.parametrize("part", PARTS)
def test_every_part_is_a_module_that_measures(part: str) -> None:
    assert callable(import_module(f"tests.benchmarks.{part}").measure)


def test_the_last_line_counts_what_is_reached() -> None:
    good, bad = figure(0.99), figure(0.5)
    assert conclusion([good, bad]) == ("1 of 2 goals are reached", False)
    assert conclusion([good]) == ("1 of 1 goals are reached", True)
    assert conclusion([good, figure()])[1] is False
    lines = table([good, figure(0.97, 0.99)])
    assert "not shown" in lines[2]
    assert "0.970..0.990" in lines[2]


def test_the_floor_of_a_tail_and_the_bound_of_survivors() -> None:
    seconds = [1.0] * 64 + [10.0]
    assert ideal_and_floor(seconds) == (74 / 64, 11.0)
    assert bound_s(1000, 200, 100.0) == 8.0
