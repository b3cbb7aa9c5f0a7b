"""How many generations to keep in flight: from the engine's limit, corrected by how it fares."""

from __future__ import annotations

from dflashq.engine.stats import EngineStats

DECREASE = 0.9
CALM_S = 30.0  # between two changes: a change shows only when some requests have ended


class AimdLimit:
    """Additive increase, multiplicative decrease of one engine's limit. Pure; one thread.

    It begins at `start` (running limit and margin), never exceeds that, and never falls below
    half of what the engine runs: an engine that wants less is not the one that was measured.
    """

    def __init__(self, start: int, running_limit: int, queue_s: float) -> None:
        self._start, self._queue_s = start, queue_s
        self._floor = min(start, max(1, running_limit // 2))
        self._step = max(1, start // 50)
        self._last: EngineStats | None = None
        self._changed_at: float | None = None
        self.limit = start
        self.why = ""

    def see(self, now_s: float, stats: EngineStats) -> bool:
        """Take note of one look at the engine; True when `limit` changed, `why` then says why."""
        last = self._last
        if last is None or self._changed_at is None:
            self._last, self._changed_at = stats, now_s
            return False
        if now_s - self._changed_at < CALM_S:
            return False
        # What happened since the last decision, not since the last look: nothing is overlooked.
        self._last, self._changed_at = stats, now_s
        self.why = self._trouble(last, stats)
        before = self.limit
        if self.why:
            self.limit = max(self._floor, int(self.limit * DECREASE))
        else:
            self.why = "neither retractions nor long queues"
            self.limit = min(self._start, self.limit + self._step)
        return self.limit != before

    def _trouble(self, before: EngineStats, now: EngineStats) -> str:
        if now.retracted > before.retracted:
            return f"{now.retracted - before.retracted} requests were retracted"
        begun = now.queued_ever - before.queued_ever
        if begun > 0 and (now.queue_s - before.queue_s) / begun > self._queue_s:
            waited = (now.queue_s - before.queue_s) / begun
            return f"requests waited {waited:.0f} s inside the engine"
        return ""
