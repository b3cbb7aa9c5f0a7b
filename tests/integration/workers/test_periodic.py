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
from workers import periodic as periodic_module
from workers.periodic import ConsumerHangDetector, DiskSpaceGate, PeriodicThread


def periodic_thread(settings: Settings) -> PeriodicThread:
    """The periodic thread of a worker that could take hints, while three wait."""
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
    no_jobs = dict.fromkeys(
        ("announce", "judge_canaries", "close_runs", "notify", "on_hung"), lambda: None
    )
    return PeriodicThread(Ledger(settings), hints, generator, **no_jobs)


def test_a_worker_whose_engine_still_loads_is_not_hung(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("workers.periodic.time", SimpleNamespace(monotonic=lambda: now[0]))
    loading = periodic_thread(settings.model_copy(update={"consumer_patience_s": 60.0}))
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
    detector = ConsumerHangDetector(10.0)
    assert not detector.hung(0.0, taken=0, free=True, waiting=1)
    assert not detector.hung(9.0, taken=0, free=True, waiting=1)
    assert detector.hung(10.0, taken=0, free=True, waiting=1)
    assert not detector.hung(11.0, taken=1, free=True, waiting=1)
    assert not detector.hung(20.0, taken=1, free=False, waiting=1)
    assert not detector.hung(29.0, taken=1, free=True, waiting=0)
    assert not detector.hung(38.0, taken=1, free=True, waiting=1)
    assert detector.hung(39.0, taken=1, free=True, waiting=1)


def test_a_full_place_closes_the_gate_once_and_opens_it_when_there_is_room() -> None:
    gate: list[str] = []
    disk_space = DiskSpaceGate(gate.append, gate.remove)
    for percent in (81, 85):
        disk_space.update([f"/data is {percent}% full", "/dev/shm is 90% full"])
        assert gate == ["/data is 81% full", "/dev/shm is 90% full"]
    disk_space.update(["/data is 83% full"])
    assert gate == ["/data is 81% full"]
    disk_space.update([])
    assert gate == []


def test_a_job_that_fails_does_not_keep_the_others_from_their_turn(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On a full disk, or without descriptors, the worker is announced and closes runs as ever."""
    exhausted = OSError(errno.EMFILE, "Too many open files")
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(periodic_module, "full_places", Mock(side_effect=full))
    thread, jobs = thread_with_jobs(settings)
    thread._sweeper = Mock(sweep=Mock(side_effect=exhausted))
    assert thread._tick() is False, "sweeping is vital"
    for name in ("announce", "judge_canaries", "close_runs", "notify"):
        assert jobs[name].called, name
    assert "thread=clock while=sweeping: OSError: [Errno 24]" in caplog.text
    assert "thread=clock while=watching the room: OSError: [Errno 28]" in caplog.text
    thread._sweeper = Mock()
    assert thread._tick() is True, "watching the disks is not vital"


def test_the_periodic_thread_outlives_a_failing_job(settings: Settings) -> None:
    thread, jobs = thread_with_jobs(settings.model_copy(update={"sweep_s": 0.01}))
    thread._sweeper = Mock(sweep=Mock(side_effect=OSError(errno.EMFILE, "Too many open files")))
    turns = threading.Semaphore(0)
    jobs["announce"].side_effect = turns.release
    thread.start()
    for _ in range(3):
        assert turns.acquire(timeout=WAIT_S)
    thread.stop()


def test_a_ledger_that_does_not_answer_is_asked_once_a_tick(settings: Settings) -> None:
    """Each job would wait for the same; a refusal is of one job alone."""
    thread, jobs = thread_with_jobs(settings)
    thread._sweeper = Mock()
    jobs["announce"].side_effect = LedgerUnreachableError("no answer")
    assert thread._tick() is True, "an outage is waited out"
    assert not jobs["notify"].called
    jobs["announce"].side_effect = LedgerRefusedError("it is full")
    assert thread._tick() is True
    assert jobs["notify"].called


def test_a_host_without_descriptors_is_not_waited_out_for_ever(settings: Settings) -> None:
    thread, jobs = thread_with_jobs(settings)
    thread._sweeper = Mock()
    failure = LedgerUnreachableError("no answer")
    failure.__cause__ = OSError(errno.EMFILE, "Too many open files")
    jobs["announce"].side_effect = failure
    assert thread._tick() is False


def thread_with_jobs(settings: Settings) -> tuple[PeriodicThread, dict[str, Mock]]:
    """A periodic thread without a ledger, and the jobs that a worker gives it."""
    jobs = {name: Mock() for name in ("announce", "judge_canaries", "close_runs", "notify")}
    generator = Mock(settings=settings, draining=threading.Event(), queue="q")
    return PeriodicThread(Mock(), Mock(), generator, **jobs, on_hung=Mock()), jobs


def test_a_consumer_that_waits_for_redis_is_not_hung_and_its_batches_are_claimed(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("workers.periodic.time", SimpleNamespace(monotonic=lambda: now[0]))
    thread = periodic_thread(settings.model_copy(update={"consumer_patience_s": 60.0}))
    assert not thread._hints_fail()
    thread.consumer_connected(False)
    assert not thread._hints_fail(), "its engine still loads"
    thread.consumer_starts()
    assert thread._hints_fail()
    assert not thread._consumer_hung()
    now[0] += 600.0
    assert not thread._consumer_hung()
    thread.consumer_connected(True)
    assert not thread._hints_fail()
    assert not thread._consumer_hung(), "patience begins when it is connected"
    now[0] += 60.0
    assert thread._consumer_hung()


def test_batches_are_claimed_while_redis_is_full(settings: Settings) -> None:
    elsewhere = settings.model_copy(update={"redis_url": "redis://127.0.0.1:9/0"})
    thread = periodic_thread(elsewhere)
    thread.consumer_starts()
    outage = Ledger(elsewhere).outage
    outage.failed("OOM", "OOM command not allowed", Need.ROOM)
    assert thread._hints_fail()
