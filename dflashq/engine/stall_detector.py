"""Whether the engine is alive: tokens move, or it has nothing to do. `/health` is not consulted.

A server that hangs may answer `/health` for hours, and one that prefills long prompts may answer
503 while all is well. Pure: the caller passes the time.
"""

from __future__ import annotations

from dflashq.engine.stats import EngineStats


class StallDetector:
    """Detects the stall of one engine from its metrics; every start needs a new detector.

    An engine that has never shown a token counter is never called stalled.
    """

    def __init__(self, stall_s: float) -> None:
        self._stall_s = stall_s
        self._progress: dict[str, float] | None = None
        self._progress_at = 0.0
        self._read_at: float | None = None

    @property
    def has_counters(self) -> bool:
        """Whether the engine has shown its token counters."""
        return self._read_at is not None

    def stalled(self, now_s: float, stats: EngineStats | None, in_flight: int | None) -> str | None:
        """Why the engine counts as stalled; None while it does not.

        `now_s`: seconds of a monotonic clock. `stats`: None when the metrics could not be read.
        `in_flight`: how many requests this worker has in the engine; None when that is not known,
        then the engine's own gauges decide. Slow is not stalled: any counter that grows, at any
        rate, starts the time anew.
        """
        if stats is None:
            return self._unreadable(now_s)
        self._read_at = now_s
        # Our own count comes first: the gauges of an idle engine may be minutes old.
        requests = stats.running + stats.queued if in_flight is None else in_flight
        if not requests or stats.progress != self._progress:
            self._progress, self._progress_at = dict(stats.progress), now_s
            return None
        still_s = now_s - self._progress_at
        if still_s < self._stall_s:
            return None
        return (
            f"no token has moved for {still_s:.0f} s while {requests} requests were in flight "
            f"({stats.running} running, {stats.queued} queued inside the engine)"
        )

    def _unreadable(self, now_s: float) -> str | None:
        if self._read_at is None or now_s - self._read_at < self._stall_s:
            return None
        return f"its metrics have not been readable for {now_s - self._read_at:.0f} s"
