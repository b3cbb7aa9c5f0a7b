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
    admission = AimdLimit(start, running, queue_s)
    assert not admission.see(0.0, at())
    return admission


def test_retractions_lower_it_and_calm_raises_it_to_the_start() -> None:
    admission = begun()
    assert admission.see(CALM_S, at(retracted=4))
    assert admission.limit == 72
    assert admission.why == "4 requests were retracted"
    seen = []
    for step in range(2, 14):
        admission.see(step * CALM_S, at(retracted=4))
        seen.append(admission.limit)
    assert seen[:3] == [73, 74, 75]
    assert seen[-1] == 80
    assert not admission.see(99 * CALM_S, at(retracted=4))


def test_long_queues_lower_it_short_ones_do_not() -> None:
    admission = begun(queue_s=60)
    assert not admission.see(CALM_S, at(waited=590, begun=10))
    assert admission.see(2 * CALM_S, at(waited=590 + 610, begun=20))
    assert "61 s" in admission.why
    assert admission.limit == 72


def test_one_burst_is_one_decrease() -> None:
    admission = begun()
    assert admission.see(CALM_S, at(retracted=9))
    for second in range(1, int(CALM_S)):
        assert not admission.see(CALM_S + second, at(retracted=9 + second))
    assert admission.see(2 * CALM_S, at(retracted=60))
    assert admission.limit == 64


def test_what_happens_between_two_decisions_is_not_overlooked() -> None:
    admission = begun()
    admission.see(CALM_S / 2, at(retracted=1))
    assert admission.see(CALM_S, at(retracted=1))


def test_it_never_falls_below_half_of_what_runs() -> None:
    admission = begun()
    for step in range(1, 50):
        admission.see(step * CALM_S, at(retracted=step))
    assert admission.limit == 32


@pytest.mark.parametrize(("start", "running"), [(1, 1), (9, 1), (2, 64)])
def test_small_limits(start: int, running: int) -> None:
    admission = begun(start, running)
    for step in range(1, 30):
        admission.see(step * CALM_S, at(retracted=step))
    assert 1 <= admission.limit <= start
    for step in range(30, 90):
        admission.see(step * CALM_S, at(retracted=30))
    assert admission.limit == start


@given(
    st.integers(1, 500),
    st.integers(1, 400),
    st.lists(st.tuples(st.floats(0.1, 100), st.integers(0, 3), st.floats(0, 500)), max_size=60),
)
def test_it_stays_between_floor_and_start(
    start: int, running: int, looks: list[tuple[float, int, float]]
) -> None:
    admission = AimdLimit(start, running, 60.0)
    now, retracted, waited = 0.0, 0, 0.0
    for number, (pause, more, longer) in enumerate(looks):
        now, retracted, waited = now + pause, retracted + more, waited + longer
        changed = admission.see(now, at(retracted, waited, number))
        assert min(start, max(1, running // 2)) <= admission.limit <= start
        assert not changed or admission.why
