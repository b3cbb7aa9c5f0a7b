"""Admission control for the engine: a limit of requests in flight, the oldest batch first."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable

_Waiter = tuple[float, int, "asyncio.Future[None]", bool]


class Gate:
    """Gives out at most `limit` slots at a time, first to the lowest priority number.

    The gate is closed while there is at least one reason to close it, and reasons are independent
    of each other. Call every method from the loop's thread, except `threadsafe_close` and
    `threadsafe_open`. Create it in a coroutine, or pass the loop.
    """

    def __init__(self, limit: int, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._limit = _positive(limit)
        self._loop = loop if loop is not None else asyncio.get_running_loop()
        self._reasons: dict[str, None] = {}  # a dict keeps the order of arrival
        self._waiters: list[_Waiter] = []
        self._arrivals = itertools.count()
        self._in_flight = 0
        self._waiting = 0
        self._alone = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def limit(self) -> int:
        """How many slots there are."""
        return self._limit

    @property
    def in_flight(self) -> int:
        """How many slots are taken; more than the limit only after the limit was lowered."""
        return self._in_flight

    @property
    def waiting(self) -> int:
        """How many callers wait for a slot."""
        return self._waiting

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the gate is closed, oldest first; empty when it is open."""
        return tuple(self._reasons)

    async def idle(self) -> None:
        """Wait until no slot is taken; an open gate may be idle for a moment only."""
        await self._idle.wait()

    def set_limit(self, limit: int) -> None:
        """Change the limit; a lowered limit takes no slot away. ValueError below 1."""
        self._limit = _positive(limit)
        self._admit()

    def close(self, reason: str) -> None:
        """Admit nobody until `reason` is withdrawn; taken slots stay taken. Safe to repeat."""
        self._reasons[reason] = None

    def open(self, reason: str) -> None:
        """Withdraw one reason; withdrawing the last opens the gate. Safe to repeat."""
        self._reasons.pop(reason, None)
        self._admit()

    def threadsafe_close(self, reason: str) -> None:
        """Schedule `close` from any thread; no effect once the loop is closed."""
        self._call(self.close, reason)

    def threadsafe_open(self, reason: str) -> None:
        """Schedule `open` from any thread; no effect once the loop is closed."""
        self._call(self.open, reason)

    def _call(self, method: Callable[[str], None], reason: str) -> None:
        try:
            self._loop.call_soon_threadsafe(method, reason)
        except RuntimeError:
            if not self._loop.is_closed():
                raise

    async def enter(self, priority: float, *, alone: bool = False) -> None:
        """Wait for a slot and take it; give it back with `leave`.

        The lowest `priority` number is served first, equal ones in order of arrival. `alone`: no
        other slot is taken meanwhile; once this caller is next, the others wait for it. A
        cancelled caller holds no slot. O(log n) in the number of waiters.
        """
        admitted: asyncio.Future[None] = self._loop.create_future()
        heapq.heappush(self._waiters, (priority, next(self._arrivals), admitted, alone))
        self._waiting += 1
        self._admit()
        try:
            await admitted
        except asyncio.CancelledError:
            self._give_up(admitted)
            raise

    def _give_up(self, admitted: asyncio.Future[None]) -> None:
        if admitted.done() and not admitted.cancelled():
            # Admitted and cancelled in the same iteration of the loop.
            self.leave()
            return
        admitted.cancel()
        self._waiting -= 1
        if len(self._waiters) > 2 * self._waiting + 64:
            self._waiters = [waiter for waiter in self._waiters if not waiter[2].done()]
            heapq.heapify(self._waiters)

    def _take_slot(self, alone: bool) -> None:
        self._in_flight += 1
        self._alone = alone
        self._idle.clear()

    def leave(self) -> None:
        """Give back a slot; the next waiter gets it."""
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
            self._take_slot(alone)
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
        raise ValueError(f"the limit of a gate is at least 1, not {limit}")
    return limit
