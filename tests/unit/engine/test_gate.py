"""The gate: never more than the limit, the oldest first, and no slot lost to a cancellation."""

from __future__ import annotations

import asyncio
import math
import random
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflashq.engine.gate import Gate
from tests.support.wait import WAIT_S


@asynccontextmanager
async def slot(gate: Gate, priority: float) -> AsyncIterator[None]:
    await gate.enter(priority)
    try:
        yield
    finally:
        gate.leave()


async def settle() -> None:
    """Let everything that can run now run."""
    for _ in range(5):
        await asyncio.sleep(0)


class Holder:
    """One task that takes a slot, notes it, and holds it until it is let go."""

    def __init__(self, gate: Gate, order: float, log: list[float]) -> None:
        self.go = asyncio.Event()
        self.inside = False
        self.task = asyncio.ensure_future(self.hold(gate, order, log))

    async def hold(self, gate: Gate, order: float, log: list[float]) -> None:
        async with slot(gate, order):
            self.inside = True
            log.append(order)
            try:
                await self.go.wait()
            finally:
                self.inside = False


def test_oldest_first_and_in_order_of_arrival() -> None:
    async def scene() -> list[float]:
        gate, log = Gate(1), []
        first = Holder(gate, 0, log)
        await settle()
        others = [Holder(gate, order, log) for order in (3.0, 1.0, 2.0, 1.001, 1.0)]
        await settle()
        assert (gate.in_flight, gate.waiting) == (1, 5)
        for holder in (first, *others):
            holder.go.set()
        await asyncio.gather(first.task, *(h.task for h in others))
        assert (gate.in_flight, gate.waiting) == (0, 0)
        return log

    assert asyncio.run(scene()) == [0, 1.0, 1.0, 1.001, 2.0, 3.0]


def test_equal_orders_are_fifo() -> None:
    async def scene() -> list[int]:
        gate, admitted = Gate(1), []

        async def enter(number: int) -> None:
            async with slot(gate, 7):
                admitted.append(number)
                await asyncio.sleep(0)

        await asyncio.gather(*(enter(n) for n in range(50)))
        return admitted

    assert asyncio.run(scene()) == list(range(50))


def test_several_reasons_keep_it_closed() -> None:
    async def scene() -> None:
        gate, log = Gate(2), []
        gate.close("engine down")
        gate.close("keep budget")
        gate.close("engine down")
        holder = Holder(gate, 1, log)
        await settle()
        assert gate.reasons == ("engine down", "keep budget")
        gate.open("engine down")
        gate.open("never closed for this")
        await settle()
        assert not holder.inside
        gate.open("keep budget")
        await settle()
        assert holder.inside
        gate.close("disk")
        assert holder.inside  # who is in stays in
        holder.go.set()
        await holder.task

    asyncio.run(scene())


def test_limit_up_and_down() -> None:
    async def scene() -> None:
        gate, log = Gate(1), []
        holders = [Holder(gate, n, log) for n in range(6)]
        await settle()
        assert gate.in_flight == 1
        gate.set_limit(4)
        await settle()
        assert gate.in_flight == 4
        gate.set_limit(2)
        for holder in holders[:2]:
            holder.go.set()
        await settle()
        assert gate.in_flight == 2
        assert gate.waiting == 2
        for holder in holders:
            holder.go.set()
        await asyncio.gather(*(h.task for h in holders))
        assert gate.in_flight == 0
        for wrong in (0, -1):
            with pytest.raises(ValueError, match="at least 1, not"):
                gate.set_limit(wrong)

    asyncio.run(scene())


def test_cancelled_in_the_turn_of_its_admission() -> None:
    async def scene() -> None:
        gate, log = Gate(1), []
        first, second, third = (Holder(gate, n, log) for n in range(3))
        await settle()
        first.go.set()
        await asyncio.sleep(0)  # `first` wakes in the next turn, and admits `second`
        while not first.task.done():
            await asyncio.sleep(0)
        second.task.cancel()
        await settle()
        assert third.inside
        assert gate.in_flight == 1
        third.go.set()
        await third.task
        assert (gate.in_flight, gate.waiting) == (0, 0)

    asyncio.run(scene())


def test_many_cancelled_waiters_leave_no_litter() -> None:
    async def scene() -> None:
        gate, log = Gate(1), []
        gate.close("down")
        for _ in range(20):
            holders = [Holder(gate, n, log) for n in range(100)]
            await settle()
            assert gate.waiting == 100
            for holder in holders:
                holder.task.cancel()
            await asyncio.gather(*(h.task for h in holders), return_exceptions=True)
        assert gate.waiting == 0
        assert len(gate._waiters) <= 64
        gate.open("down")
        last = Holder(gate, 5, log)
        await settle()
        assert last.inside
        last.go.set()
        await last.task

    asyncio.run(scene())


def test_one_alone_in_the_engine() -> None:
    async def scene() -> None:
        gate, log = Gate(3), []
        await asyncio.wait_for(gate.idle(), WAIT_S)
        holders = [Holder(gate, n, log) for n in range(5)]
        await settle()
        gate.close("a suspect runs alone")
        alone = asyncio.ensure_future(gate.idle())
        for holder in holders[:3]:
            await settle()
            assert not alone.done()
            holder.go.set()
        await asyncio.wait_for(alone, WAIT_S)
        assert (gate.in_flight, gate.waiting) == (0, 2)
        gate.open("a suspect runs alone")
        await settle()
        assert gate.in_flight == 2
        for holder in holders:
            holder.go.set()
        await asyncio.gather(*(h.task for h in holders))
        await asyncio.wait_for(gate.idle(), WAIT_S)

    asyncio.run(scene())


STEP = st.one_of(
    st.tuples(st.just("enter"), st.integers(0, 3)),
    st.tuples(st.just("leave"), st.integers(0, 30)),
    st.tuples(st.just("cancel"), st.integers(0, 30)),
    st.tuples(st.just("limit"), st.integers(1, 4)),
    st.tuples(st.just("close"), st.integers(0, 1)),
    st.tuples(st.just("open"), st.integers(0, 1)),
    st.tuples(st.just("tick"), st.just(0)),
)


@settings(max_examples=300)
@given(st.lists(STEP, max_size=60))
def test_no_sequence_of_events_loses_a_slot(steps: list[tuple[str, int]]) -> None:
    async def scene() -> None:
        gate, log = Gate(2), []
        holders: list[Holder] = []
        for verb, value in steps:
            if verb == "enter":
                holders.append(Holder(gate, value, log))
            elif verb in ("leave", "cancel") and value < len(holders):
                holder = holders[value]
                holder.go.set() if verb == "leave" else holder.task.cancel()
            elif verb == "limit":
                gate.set_limit(value)
            elif verb in ("close", "open"):
                getattr(gate, verb)(f"reason {value}")
            else:
                await asyncio.sleep(0)
        await settle()
        inside = sum(h.inside for h in holders)
        assert gate.in_flight == inside
        assert gate.waiting == sum(not h.task.done() for h in holders) - inside
        # With room and open, nobody waits; a holder whose event is set has left by now.
        assert gate.reasons or gate.in_flight >= gate.limit or gate.waiting == 0
        gate.set_limit(1)
        for reason in gate.reasons:
            gate.open(reason)
        for holder in holders:
            holder.go.set()
        await asyncio.gather(*(h.task for h in holders), return_exceptions=True)
        assert (gate.in_flight, gate.waiting) == (0, 0)
        async with asyncio.timeout(WAIT_S), slot(gate, 0):
            assert gate.in_flight == 1

    asyncio.run(scene())


class Counted(float):
    """An order that counts how often any two were compared."""

    compared = 0

    def __lt__(self, other: float) -> bool:
        Counted.compared += 1
        return float(self) < float(other)

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return isinstance(other, float) and float(self) == float(other)

    __hash__ = float.__hash__


def test_many_waiters_cost_a_logarithm_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counted, "compared", 0)
    count = 4096

    async def scene() -> None:
        gate = Gate(64)
        orders = [Counted(number) for number in range(count)]
        random.Random(1).shuffle(orders)

        async def enter(order: float) -> None:
            async with slot(gate, order):
                await asyncio.sleep(0)

        await asyncio.gather(*(enter(order) for order in orders))

    asyncio.run(scene())
    assert count < Counted.compared < 5 * count * math.log2(count)


def test_from_another_thread() -> None:
    async def scene() -> None:
        gate = Gate(1)
        closer = threading.Thread(target=gate.threadsafe_close, args=("engine down",))
        closer.start()
        closer.join()
        await settle()
        assert gate.reasons == ("engine down",)
        opener = threading.Timer(0.05, gate.threadsafe_open, args=("engine down",))
        opener.start()
        async with asyncio.timeout(WAIT_S), slot(gate, 0):
            assert gate.reasons == ()
        opener.join()
        return gate

    gate = asyncio.run(scene())
    gate.threadsafe_close("the loop is gone, and nobody is hurt")
