"""When a worker takes its own consumer for hung, and when it must not."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

from dflashq.config import Settings
from workers.clock import Clock, ConsumerWatch, RoomWatch


def clock(settings: Settings) -> Clock:
    """A clock of a worker that could take hints, while three wait."""
    generator: Any = SimpleNamespace(
        settings=settings,
        draining=threading.Event(),
        taken=0,
        active=list,
        queue="q",
        close_gate=None,
        open_gate=None,
        reclaim=lambda: None,
    )
    hints: Any = SimpleNamespace(waiting=lambda queue: 3)
    nothing = dict.fromkeys(
        ("announce", "judge_canaries", "close_runs", "notify", "on_hung"), lambda: None
    )
    return Clock(None, hints, generator, **nothing)  # type: ignore[arg-type]


def hung_within(one: Clock, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if one._consumer_hung():
            return True
        time.sleep(0.01)
    return False


def test_a_worker_whose_engine_still_loads_is_not_hung(settings: Settings) -> None:
    one = clock(settings.model_copy(update={"consumer_patience_s": 0.05}))
    assert not hung_within(one, 0.5)
    one.consumer_starts()
    assert not one._consumer_hung(), "patience begins with the consumer"
    assert hung_within(one, 5.0)


def test_patience_begins_anew_with_every_hint_taken() -> None:
    watch = ConsumerWatch(10.0)
    assert not watch.hung(0.0, taken=0, free=True, waiting=1)
    assert not watch.hung(9.0, taken=0, free=True, waiting=1)
    assert watch.hung(10.0, taken=0, free=True, waiting=1)
    assert not watch.hung(11.0, taken=1, free=True, waiting=1)
    assert not watch.hung(20.0, taken=1, free=False, waiting=1)
    assert not watch.hung(29.0, taken=1, free=True, waiting=0)
    assert not watch.hung(38.0, taken=1, free=True, waiting=1)
    assert watch.hung(39.0, taken=1, free=True, waiting=1)


def test_a_full_place_closes_the_gate_once_and_opens_it_when_there_is_room() -> None:
    gate: list[str] = []
    room = RoomWatch(gate.append, gate.remove)
    for percent in (81, 85):
        room.look([f"/data is {percent}% full", "/dev/shm is 90% full"])
        assert gate == ["/data is 81% full", "/dev/shm is 90% full"]
    room.look(["/data is 83% full"])
    assert gate == ["/data is 81% full"]
    room.look([])
    assert gate == []
