"""Rates and remaining times; the caller gives the time."""

from __future__ import annotations

from collections import deque

MINUTE, HOUR, DAY = 60, 3600, 86400


class RateWindow:
    """The rate of a growing amount over the last `seconds`. An amount that shrank starts anew.

    There is no rate before the points span `least` seconds: an amount that grows in steps would
    show as no rate and then as a jump.
    """

    def __init__(self, seconds: float, least: float = 0.0) -> None:
        self._seconds, self._least = seconds, least
        self._points: deque[tuple[float, float]] = deque()

    def add(self, at_s: float, amount: float) -> None:
        """Add the amount as it was at `at_s`, in seconds of any monotonic clock."""
        points = self._points
        if points and amount < points[-1][1]:
            points.clear()
        points.append((at_s, amount))
        # The last point before the window stays, so that the points span the whole window.
        while len(points) > 2 and points[1][0] <= at_s - self._seconds:
            points.popleft()

    def per_s(self) -> float | None:
        """Amount per second; None while too little time is known."""
        if len(self._points) < 2:
            return None
        (then, before), (now, after) = self._points[0], self._points[-1]
        known = now > then and now - then >= self._least
        return (after - before) / (now - then) if known else None


def eta_s(settled: int, of: int, tokens: int, tokens_per_s: float) -> float | None:
    """Seconds until `of` prompts are settled, given that `settled` of them took `tokens`.

    None while no prompt is settled or no token moves.
    """
    if settled >= of:
        return 0.0
    if settled <= 0 or tokens <= 0 or tokens_per_s <= 0:
        return None
    return (of - settled) * (tokens / settled) / tokens_per_s


def in_words(seconds: float) -> str:
    """A length of time in its two largest units: `2 d 4 h`, `3 h 5 min`, `12 min`, `40 s`."""
    whole = max(0, round(seconds))
    if whole < MINUTE:
        return f"{whole} s"
    if whole < HOUR:
        return f"{whole // MINUTE} min"
    if whole < DAY:
        return _two(whole // HOUR, "h", whole % HOUR // MINUTE, "min")
    return _two(whole // DAY, "d", whole % DAY // HOUR, "h")


def _two(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large} {large_unit}" + (f" {small} {small_unit}" if small else "")
