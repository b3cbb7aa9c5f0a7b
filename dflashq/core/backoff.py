"""The pause before the next try: it doubles with every failure, up to a bound."""

from __future__ import annotations

_DOUBLINGS = 32  # beyond any bound in use, and still a float


def delay_s(failures: int, first_s: float, longest_s: float, *, jitter: float = 1.0) -> float:
    """Seconds to wait after so many failures in a row (1 or more).

    `jitter` in (0, 1] shortens the pause, so that many who failed together do not return together:
    the caller draws it, for nothing here is random.
    """
    doublings = min(max(failures, 1) - 1, _DOUBLINGS)
    return min(longest_s, first_s * 2.0**doublings) * jitter
