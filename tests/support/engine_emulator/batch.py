"""Continuous batching as arithmetic: one timer for the whole batch, none per token.

All running requests decode in step, so their progress is one number: the decode steps made since
the start. A request that begins at step s and has n ids ends at step s + n, whatever the pace does
in between; a heap of those ends and one timer for its head are enough.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Pace:
    """Times of the emulated hardware; `speed` 2 is twice as fast."""

    token_ms: float
    token_ms_per_running: float = 0.0
    prefill_ms_per_1k: float = 0.0
    speed: float = 1.0

    def token_s(self, running: int) -> float:
        """Seconds that one id takes when `running` requests share the batch."""
        ms = self.token_ms + self.token_ms_per_running * max(0, running - 1)
        return ms / 1000 / self.speed

    def prefill_s(self, prompt_tokens: int) -> float:
        return self.prefill_ms_per_1k * prompt_tokens / 1e6 / self.speed


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a request left the batch: ids made, whether it was cut off, seconds it queued."""

    made: int
    aborted: bool
    queued_s: float | None


@dataclass(slots=True, eq=False)
class Entry:
    """A request in the batch or in its queue; `length` is infinite when it is to hang."""

    rid: str
    prompt_tokens: int
    length: float
    done: asyncio.Future[Outcome]
    received: float
    first_step: float = math.inf
    started: float | None = None
    on_start: Callable[[], None] = field(default=lambda: None)


class Batch:
    """`slots` requests run, the others wait, first come first served. One event loop only."""

    def __init__(self, slots: int, pace: Pace) -> None:
        self.slots, self.pace = slots, pace
        self.running: dict[str, Entry] = {}
        self.waiting: deque[Entry] = deque()
        self.slot_seconds = 0.0
        self.saturated_seconds = 0.0
        self.generated = 0
        self.queue_s, self.queued_ever = 0.0, 0
        self._slow, self._hang = 1.0, False
        self._steps = 0.0
        self._loop = asyncio.get_running_loop()
        self._at = self._loop.time()
        self._ends: list[tuple[float, int, Entry]] = []
        self._order = 0
        self._timer: asyncio.TimerHandle | None = None

    def submit(self, entry: Entry) -> None:
        """Queue a request; its `done` is resolved when it leaves."""
        self.waiting.append(entry)
        self._turn()

    def set_pace(self, *, slow: float, hang: bool) -> None:
        """Change the speed from now on; what is made stays made."""
        self._advance()
        self._slow, self._hang = slow, hang
        self._turn()

    def abort(self, rid_prefix: str) -> int:
        """Cut off every request whose rid begins so (the real engine's rule); how many."""
        hit = [e for e in self._everyone() if e.rid.startswith(rid_prefix)]
        self._cut_off(hit)
        return len(hit)

    def drop(self, entry: Entry) -> None:
        """Cut off this one request; nothing happens when it has left already."""
        self._cut_off([entry])

    def _everyone(self) -> list[Entry]:
        return [*self.running.values(), *self.waiting]

    def _cut_off(self, entries: list[Entry]) -> None:
        self._advance()
        for entry in entries:
            if self.running.get(entry.rid) is entry:
                self._leave(entry, aborted=True)
            elif entry in self.waiting:
                self.waiting.remove(entry)
                _resolve(entry, Outcome(0, True, None))
        self._turn()

    def advance(self) -> None:
        """Bring all counters up to now."""
        self._advance()

    def live_generated(self) -> int:
        """Ids made so far, those of unfinished requests included; never falls."""
        self._advance()
        return self.generated + sum(self._made(e) for e in self.running.values())

    def made(self, entry: Entry) -> int:
        """Ids made so far of one request; 0 while it waits."""
        self._advance()
        return self._made(entry) if entry.started is not None else 0

    def _made(self, entry: Entry) -> int:
        made = max(0.0, self._steps - entry.first_step + 1e-6)
        return int(min(made, entry.length))

    def _rate(self) -> float:
        if self._hang:
            return 0.0
        return 1 / (self.pace.token_s(len(self.running)) * self._slow)

    def _advance(self) -> None:
        now = self._loop.time()
        passed = now - self._at
        self._at = now
        self._steps += passed * self._rate()
        self.slot_seconds += passed * len(self.running)
        if len(self.running) == self.slots:
            self.saturated_seconds += passed

    def _turn(self) -> None:
        """End what has ended, start what has room, wait for the next end."""
        self._advance()
        while self._ends and self._ends[0][0] <= self._steps + 1e-6:
            entry = heapq.heappop(self._ends)[2]
            if self.running.get(entry.rid) is entry:
                self._leave(entry, aborted=False)
        while self.waiting and len(self.running) < self.slots:
            self._start(self.waiting.popleft())
        self._arm()

    def _start(self, entry: Entry) -> None:
        self.running[entry.rid] = entry
        entry.started = self._at
        self.queue_s += max(0.0, self._at - entry.received)
        self.queued_ever += 1
        # Prefill is charged as the decode steps that would fit into its time.
        prefill = self.pace.prefill_s(entry.prompt_tokens)
        entry.first_step = self._steps + prefill / self.pace.token_s(len(self.running))
        self._order += 1
        heapq.heappush(self._ends, (entry.first_step + entry.length, self._order, entry))
        entry.on_start()

    def _leave(self, entry: Entry, *, aborted: bool) -> None:
        del self.running[entry.rid]
        made = self._made(entry) if aborted else int(entry.length)
        self.generated += made
        started = entry.started or entry.received
        _resolve(entry, Outcome(made, aborted, started - entry.received))

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._ends and self.running.get(self._ends[0][2].rid) is not self._ends[0][2]:
            heapq.heappop(self._ends)
        rate = self._rate()
        if self._ends and rate > 0 and math.isfinite(self._ends[0][0]):
            wait = max(0.0, (self._ends[0][0] - self._steps) / rate)
            self._timer = self._loop.call_later(wait, self._turn)


def _resolve(entry: Entry, outcome: Outcome) -> None:
    if not entry.done.done():
        entry.done.set_result(outcome)
