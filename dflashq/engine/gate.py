"""Admission to the engine: so many at once, the oldest batch first, closed while it must be."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
from collections.abc import AsyncIterator, Callable

_Waiter = tuple[float, int, "asyncio.Future[None]", bool]


class Gate:
    """Admits at most `limit` holders at a time; of those waiting, the lowest order first.

    It is open while it has no reason to be closed; several reasons stand side by side. Every
    method belongs to the thread of the loop, except `threadsafe_close` and `threadsafe_open`.
    Create it in a coroutine, or give it the loop.
    """

    def __init__(self, limit: int, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._limit = _positive(limit)
        self._loop = loop if loop is not None else asyncio.get_running_loop()
        self._reasons: dict[str, None] = {}  # a dict keeps the order in which they came
        self._waiters: list[_Waiter] = []
        self._arrivals = itertools.count()
        self._in_flight = 0
        self._waiting = 0
        self._alone = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def limit(self) -> int:
        """How many may be in flight."""
        return self._limit

    @property
    def in_flight(self) -> int:
        """How many hold a slot now; above the limit only after the limit was lowered."""
        return self._in_flight

    @property
    def waiting(self) -> int:
        """How many wait for a slot."""
        return self._waiting

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the gate is closed, oldest first; empty when it is open."""
        return tuple(self._reasons)

    @contextlib.asynccontextmanager
    async def slot(self, order: float, *, alone: bool = False) -> AsyncIterator[None]:
        """Hold one slot meanwhile; see `enter`."""
        await self.enter(order, alone=alone)
        try:
            yield
        finally:
            self.leave()

    async def idle(self) -> None:
        """Wait until nothing is in flight; on an open gate that may be for a moment only."""
        await self._idle.wait()

    def set_limit(self, limit: int) -> None:
        """Change the limit; holders above a lowered one stay until they are done."""
        self._limit = _positive(limit)
        self._admit()

    def close(self, reason: str) -> None:
        """Admit nobody more until `reason` is taken back; holders stay. Safe to repeat."""
        self._reasons[reason] = None

    def open(self, reason: str) -> None:
        """Take back one reason; the last one opens the gate. An unknown one changes nothing."""
        self._reasons.pop(reason, None)
        self._admit()

    def threadsafe_close(self, reason: str) -> None:
        """`close` from any thread, soon; without effect once the loop is closed."""
        self._call(self.close, reason)

    def threadsafe_open(self, reason: str) -> None:
        """`open` from any thread, soon; without effect once the loop is closed."""
        self._call(self.open, reason)

    def _call(self, method: Callable[[str], None], reason: str) -> None:
        try:
            self._loop.call_soon_threadsafe(method, reason)
        except RuntimeError:
            if not self._loop.is_closed():
                raise

    async def enter(self, order: float, *, alone: bool = False) -> None:
        """Take one slot, to be given back by `leave`. Waits; equal orders are served as they came.

        `alone`: nothing else is in flight meanwhile; once it is the next to be admitted, the
        others wait for it. A cancelled waiter takes nothing with it. O(log n) in the waiters.
        """
        admitted: asyncio.Future[None] = self._loop.create_future()
        heapq.heappush(self._waiters, (order, next(self._arrivals), admitted, alone))
        self._waiting += 1
        self._admit()
        try:
            await admitted
        except asyncio.CancelledError:
            self._give_up(admitted)
            raise

    def _give_up(self, admitted: asyncio.Future[None]) -> None:
        if admitted.done() and not admitted.cancelled():
            # Admitted in the very turn of the loop in which it was cancelled.
            self.leave()
            return
        admitted.cancel()
        self._waiting -= 1
        if len(self._waiters) > 2 * self._waiting + 64:
            self._waiters = [waiter for waiter in self._waiters if not waiter[2].done()]
            heapq.heapify(self._waiters)

    def _take(self, alone: bool) -> None:
        self._in_flight += 1
        self._alone = alone
        self._idle.clear()

    def leave(self) -> None:
        """Give back a slot: the next one is admitted."""
        self._in_flight -= 1
        if not self._in_flight:
            self._alone = False
            self._idle.set()
        self._admit()

    def _admit(self) -> None:
        while self._waiters and self._room_for(self._waiters[0]):
            _, _, admitted, alone = heapq.heappop(self._waiters)
            if admitted.done():
                continue
            self._take(alone)
            self._waiting -= 1
            admitted.set_result(None)

    def _room_for(self, waiter: _Waiter) -> bool:
        _, _, admitted, alone = waiter
        if admitted.done():
            return True
        if self._reasons or self._alone:
            return False
        return self._in_flight < (1 if alone else self._limit)


def _positive(limit: int) -> int:
    if limit < 1:
        raise ValueError(f"a gate admits at least one, not {limit}")
    return limit
