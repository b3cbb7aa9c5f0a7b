"""Is the engine alive? Tokens move, or nothing is asked of it; `/health` is not consulted.

A server that hangs may answer `/health` for hours, and one that prefills long prompts may answer
503 while all is well. Pure: the caller brings the time.
"""

from __future__ import annotations

from dflashq.engine.stats import EngineStats


class StallDetector:
    """Judges one engine by what was seen of it; a new engine needs a new one.

    An engine that never showed a counter cannot be judged and is never called stalled.
    """

    def __init__(self, stall_s: float) -> None:
        self._stall_s = stall_s
        self._progress: dict[str, float] | None = None
        self._moved_at = 0.0
        self._seen_at: float | None = None

    @property
    def judging(self) -> bool:
        """True once the engine has shown its counters."""
        return self._seen_at is not None

    def stalled(self, now_s: float, stats: EngineStats | None, in_flight: int | None) -> str | None:
        """Why the engine counts as stalled, None while it does not.

        `stats` is None when its metrics could not be read; `in_flight` is how many requests of
        ours it has, None when nobody counts them (then its own gauges decide). Slow is not
        stalled: any counter that grew, at any rate, begins the time anew.
        """
        if stats is None:
            return self._unseen(now_s)
        self._seen_at = now_s
        # Our own count, if there is one: the gauges of an idle engine may be those of minutes ago.
        asked = stats.running + stats.queued if in_flight is None else in_flight
        if not asked or stats.progress != self._progress:
            self._progress, self._moved_at = dict(stats.progress), now_s
            return None
        still_s = now_s - self._moved_at
        if still_s < self._stall_s:
            return None
        return (
            f"no token has moved for {still_s:.0f} s while {asked} requests were in flight "
            f"({stats.running} running, {stats.queued} queued inside the engine)"
        )

    def _unseen(self, now_s: float) -> str | None:
        if self._seen_at is None or now_s - self._seen_at < self._stall_s:
            return None
        return f"its metrics have not been readable for {now_s - self._seen_at:.0f} s"
