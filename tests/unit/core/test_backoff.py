"""The pause before the next try."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dflashq.core.backoff import delay_s


def test_the_pause_doubles_up_to_its_bound() -> None:
    assert [delay_s(failures, 2, 30) for failures in range(7)] == [2, 2, 4, 8, 16, 30, 30]


@given(st.integers(0, 10**9), st.floats(0.01, 60), st.floats(0.01, 1))
def test_a_pause_is_never_longer_than_its_bound(failures: int, first: float, jitter: float) -> None:
    assert 0 < delay_s(failures, first, 60.0, jitter=jitter) <= 60.0
