"""How many generations to keep in flight: the engine's limit, corrected by its metrics."""

from __future__ import annotations

from dflashq.engine.stats import EngineStats

DECREASE = 0.9
CALM_S = 30.0  # between two decisions: a change shows only after some requests have ended


class AimdLimit:
    """Additive increase, multiplicative decrease (AIMD) of one engine's limit. Not thread-safe.

    `start` (the running limit plus the margin) is the first value and the maximum. The minimum is
    half of `running_limit`: an engine that can run fewer is not the one that was measured.
    `queue_s`: longer average waits inside the engine lower the limit. `why` explains the last
    decision. Chiu and Jain 1989, "Analysis of the increase and decrease algorithms for congestion
    avoidance in computer networks".
    """

    def __init__(self, start: int, running_limit: int, queue_s: float) -> None:
        self._start, self._queue_s = start, queue_s
        self._floor = min(start, max(1, running_limit // 2))
        self._step = max(1, start // 50)
        self._last: EngineStats | None = None
        self._changed_at: float | None = None
        self.limit = start
        self.why = ""

    def update(self, now_s: float, stats: EngineStats) -> bool:
        """Decide anew from the engine's metrics, at most every 30 s; True when `limit` changed.

        `now_s`: seconds of a monotonic clock.
        """
        last = self._last
        if last is None or self._changed_at is None:
            self._last, self._changed_at = stats, now_s
            return False
        if now_s - self._changed_at < CALM_S:
            return False
        # Compared with the last decision, not with the last call: no event in between is lost.
        self._last, self._changed_at = stats, now_s
        self.why = self._reason_to_decrease(last, stats)
        before = self.limit
        if self.why:
            self.limit = max(self._floor, int(self.limit * DECREASE))
        else:
            self.why = "neither retractions nor long queues"
            self.limit = min(self._start, self.limit + self._step)
        return self.limit != before

    def _reason_to_decrease(self, before: EngineStats, now: EngineStats) -> str:
        if now.retracted > before.retracted:
            return f"{now.retracted - before.retracted} requests were retracted"
        queued = now.queued_ever - before.queued_ever
        wait_s = (now.queue_s - before.queue_s) / queued if queued > 0 else 0.0
        return f"requests waited {wait_s:.0f} s inside the engine" if wait_s > self._queue_s else ""
