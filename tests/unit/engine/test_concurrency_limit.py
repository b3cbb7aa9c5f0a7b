"""How many are in flight: down at once when the engine suffers, up again step by step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflashq.engine.concurrency_limit import CALM_S, AimdLimit
from dflashq.engine.stats import EngineStats


def at(retracted: int = 0, waited: float = 0.0, begun: int = 0) -> EngineStats:
    return EngineStats(retracted=retracted, queue_s=waited, queued_ever=begun)


def begun(start: int = 80, running: int = 64, queue_s: float = 60.0) -> AimdLimit:
    limit = AimdLimit(start, running, queue_s)
    assert not limit.update(0.0, at())
    return limit


def test_retractions_lower_it_and_calm_raises_it_to_the_start() -> None:
    limit = begun()
    assert limit.update(CALM_S, at(retracted=4))
    assert limit.limit == 72
    assert limit.why == "4 requests were retracted"
    limits = []
    for step in range(2, 14):
        limit.update(step * CALM_S, at(retracted=4))
        limits.append(limit.limit)
    assert limits[:3] == [73, 74, 75]
    assert limits[-1] == 80
    assert not limit.update(99 * CALM_S, at(retracted=4))


def test_long_queues_lower_it_short_ones_do_not() -> None:
    limit = begun(queue_s=60)
    assert not limit.update(CALM_S, at(waited=590, begun=10))
    assert limit.update(2 * CALM_S, at(waited=590 + 610, begun=20))
    assert "61 s" in limit.why
    assert limit.limit == 72


def test_one_burst_is_one_decrease() -> None:
    limit = begun()
    assert limit.update(CALM_S, at(retracted=9))
    for second in range(1, int(CALM_S)):
        assert not limit.update(CALM_S + second, at(retracted=9 + second))
    assert limit.update(2 * CALM_S, at(retracted=60))
    assert limit.limit == 64


def test_what_happens_between_two_decisions_is_not_overlooked() -> None:
    limit = begun()
    limit.update(CALM_S / 2, at(retracted=1))
    assert limit.update(CALM_S, at(retracted=1))


def test_it_never_falls_below_half_of_what_runs() -> None:
    limit = begun()
    for step in range(1, 50):
        limit.update(step * CALM_S, at(retracted=step))
    assert limit.limit == 32


@pytest.mark.parametrize(("start", "running"), [(1, 1), (9, 1), (2, 64)])
def test_small_limits(start: int, running: int) -> None:
    limit = begun(start, running)
    for step in range(1, 30):
        limit.update(step * CALM_S, at(retracted=step))
    assert 1 <= limit.limit <= start
    for step in range(30, 90):
        limit.update(step * CALM_S, at(retracted=30))
    assert limit.limit == start


@given(
    st.integers(1, 500),
    st.integers(1, 400),
    st.lists(st.tuples(st.floats(0.1, 100), st.integers(0, 3), st.floats(0, 500)), max_size=60),
)
def test_it_stays_between_floor_and_start(
    start: int, running: int, looks: list[tuple[float, int, float]]
) -> None:
    limit = AimdLimit(start, running, 60.0)
    now, retracted, waited = 0.0, 0, 0.0
    for number, (pause, more, longer) in enumerate(looks):
        now, retracted, waited = now + pause, retracted + more, waited + longer
        changed = limit.update(now, at(retracted, waited, number))
        assert min(start, max(1, running // 2)) <= limit.limit <= start
        assert not changed or limit.why
