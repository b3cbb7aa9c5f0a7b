"""When a worker takes its own consumer for hung, and when it must not."""

from __future__ import annotations

import errno
import threading
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from dflashq.config import Settings
from dflashq.core.errors import LedgerRefusedError, LedgerUnreachableError
from dflashq.ledger import Ledger
from dflashq.ledger.refusal import Need
from tests.support.wait import WAIT_S
from workers import periodic as clock_module
from workers.periodic import ConsumerHangDetector, DiskSpaceGate, PeriodicThread


def clock(settings: Settings) -> PeriodicThread:
    """A clock of a worker that could take hints, while three wait."""
    generator: Any = SimpleNamespace(
        settings=settings,
        draining=threading.Event(),
        hints_taken=0,
        active=list,
        queue="q",
        close_gate=None,
        open_gate=None,
        resume_recovered=lambda: None,
        look_at_peers=lambda: None,
    )
    hints: Any = SimpleNamespace(waiting=lambda queue: 3)
    nothing = dict.fromkeys(
        ("announce", "judge_canaries", "close_runs", "notify", "on_hung"), lambda: None
    )
    return PeriodicThread(Ledger(settings), hints, generator, **nothing)


def test_a_worker_whose_engine_still_loads_is_not_hung(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("workers.periodic.time", SimpleNamespace(monotonic=lambda: now[0]))
    loading = clock(settings.model_copy(update={"consumer_patience_s": 60.0}))
    assert not loading._consumer_hung()
    now[0] += 600.0
    assert not loading._consumer_hung()
    loading.consumer_starts()
    assert not loading._consumer_hung(), "patience begins with the consumer"
    now[0] += 59.0
    assert not loading._consumer_hung()
    now[0] += 1.0
    assert loading._consumer_hung()


def test_patience_begins_anew_with_every_hint_taken() -> None:
    watch = ConsumerHangDetector(10.0)
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
    room = DiskSpaceGate(gate.append, gate.remove)
    for percent in (81, 85):
        room.look([f"/data is {percent}% full", "/dev/shm is 90% full"])
        assert gate == ["/data is 81% full", "/dev/shm is 90% full"]
    room.look(["/data is 83% full"])
    assert gate == ["/data is 81% full"]
    room.look([])
    assert gate == []


def test_a_job_that_fails_does_not_keep_the_others_from_their_turn(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk, no descriptor left: the worker is announced and closes runs all the same."""
    exhausted = OSError(errno.EMFILE, "Too many open files")
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(clock_module, "full_places", Mock(side_effect=full))
    one, jobs = clock_with_jobs(settings)
    one._sweeper = Mock(sweep=Mock(side_effect=exhausted))
    assert one._tick() is False, "sweeping is vital"
    for name in ("announce", "judge_canaries", "close_runs", "notify"):
        assert jobs[name].called, name
    assert "thread=clock while=sweeping: OSError: [Errno 24]" in caplog.text
    assert "thread=clock while=watching the room: OSError: [Errno 28]" in caplog.text
    one._sweeper = Mock()
    assert one._tick() is True, "a look at the room is not"


def test_a_thread_of_the_clock_outlives_its_jobs(settings: Settings) -> None:
    one, jobs = clock_with_jobs(settings.model_copy(update={"sweep_s": 0.01}))
    one._sweeper = Mock(sweep=Mock(side_effect=OSError(errno.EMFILE, "Too many open files")))
    turns = threading.Semaphore(0)
    jobs["announce"].side_effect = turns.release
    one.start()
    for _ in range(3):
        assert turns.acquire(timeout=WAIT_S)
    one.stop()


def test_a_ledger_that_does_not_answer_is_asked_once_a_tick(settings: Settings) -> None:
    """Each job would wait for the same; a refusal is of one job alone."""
    one, jobs = clock_with_jobs(settings)
    one._sweeper = Mock()
    jobs["announce"].side_effect = LedgerUnreachableError("no answer")
    assert one._tick() is True, "an outage is waited out"
    assert not jobs["notify"].called
    jobs["announce"].side_effect = LedgerRefusedError("it is full")
    assert one._tick() is True
    assert jobs["notify"].called


def test_a_host_without_descriptors_is_not_waited_out_for_ever(settings: Settings) -> None:
    one, jobs = clock_with_jobs(settings)
    one._sweeper = Mock()
    failure = LedgerUnreachableError("no answer")
    failure.__cause__ = OSError(errno.EMFILE, "Too many open files")
    jobs["announce"].side_effect = failure
    assert one._tick() is False


def clock_with_jobs(settings: Settings) -> tuple[PeriodicThread, dict[str, Mock]]:
    """A clock without a ledger, and the jobs that a worker gives it."""
    jobs = {name: Mock() for name in ("announce", "judge_canaries", "close_runs", "notify")}
    generator = Mock(settings=settings, draining=threading.Event(), queue="q")
    return PeriodicThread(Mock(), Mock(), generator, **jobs, on_hung=Mock()), jobs


def test_a_consumer_that_waits_for_redis_is_not_hung_and_its_batches_are_claimed(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("workers.periodic.time", SimpleNamespace(monotonic=lambda: now[0]))
    one = clock(settings.model_copy(update={"consumer_patience_s": 60.0}))
    assert not one._hints_fail()
    one.consumer_connected(False)
    assert not one._hints_fail(), "its engine still loads"
    one.consumer_starts()
    assert one._hints_fail()
    assert not one._consumer_hung()
    now[0] += 600.0
    assert not one._consumer_hung()
    one.consumer_connected(True)
    assert not one._hints_fail()
    assert not one._consumer_hung(), "patience begins when it is connected"
    now[0] += 60.0
    assert one._consumer_hung()


def test_batches_are_claimed_while_redis_is_full(settings: Settings) -> None:
    elsewhere = settings.model_copy(update={"redis_url": "redis://127.0.0.1:9/0"})
    one = clock(elsewhere)
    one.consumer_starts()
    outage = Ledger(elsewhere).outage
    outage.failed("OOM", "OOM command not allowed", Need.ROOM)
    assert one._hints_fail()
