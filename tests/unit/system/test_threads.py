"""Supervised threads go on after what nobody expected, and say so; what has no hope ends loudly."""

from __future__ import annotations

import ast
import errno
import logging
import queue
import threading
from pathlib import Path

import pytest

from dflashq.core import metrics
from dflashq.system import threads
from dflashq.system.threads import OneShotThread, SupervisedThread, report
from tests.support.wait import WAIT_S, wait_until


class PanicError(BaseException):
    """What a panic in a Rust extension looks like: no Exception."""


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses of milliseconds, nothing told before, nobody to end the process."""
    monkeypatch.setattr(threads, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(threads, "LONGEST_PAUSE_S", 0.002)
    monkeypatch.setattr(threads, "_process", threads._Process())


def errors(thread: str) -> float:
    return metrics.THREAD_ERRORS.counts().get((thread,), 0)


def test_a_turn_that_fails_costs_itself_alone(caplog: pytest.LogCaptureFixture) -> None:
    turns = queue.SimpleQueue[int]()
    numbers = iter(range(10**9))

    def turn() -> None:
        turns.put(number := next(numbers))
        if number in (1, 2):
            raise OSError(errno.EMFILE, "Too many open files")

    before = errors("t-goes-on")
    thread = SupervisedThread("t-goes-on", turn, pause_s=0.001)
    thread.start()
    while turns.get(timeout=WAIT_S) < 5:
        pass
    thread.stop()
    assert not thread.alive
    assert errors("t-goes-on") - before == 2
    [reported] = [r for r in caplog.records if "a thread failed" in r.getMessage()]
    assert reported.levelno == logging.ERROR
    assert reported.exc_info is not None
    assert "thread=t-goes-on" in reported.getMessage()
    assert "Too many open files" in reported.getMessage()


def test_repeats_are_summed_up(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise ValueError("again")

    def reported() -> list[str]:
        return [r.getMessage() for r in caplog.records]

    for _ in range(5):
        try:
            fail()
        except ValueError as exc:
            report("t-repeats", exc, "trying")
    assert len(reported()) == 1
    monkeypatch.setattr(threads, "REPEAT_S", 0.0)
    try:
        fail()
    except ValueError as exc:
        report("t-repeats", exc, "trying")
    assert "times=5" in reported()[-1]
    assert len(reported()) == 2


def test_one_that_fails_on_end_gives_up_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "FATAL_S", 0.0)
    reported = queue.SimpleQueue[str]()
    turns = []

    def turn() -> bool:
        turns.append(1)
        return False

    thread = SupervisedThread("t-fatal", turn, on_fatal=reported.put)
    thread.start()
    assert f"t-fatal cannot go on (it failed {threads.FATAL_TURNS} times" in reported.get(
        timeout=WAIT_S
    )
    wait_until(lambda: not thread.alive, "the thread ends")
    assert len(turns) == threads.FATAL_TURNS


def test_failures_with_successes_between_them_are_not_on_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threads, "FATAL_S", 0.0)
    turns = []
    fatal: list[str] = []

    def turn() -> bool:
        turns.append(1)
        return len(turns) % threads.FATAL_TURNS == 0

    thread = SupervisedThread("t-now-and-then", turn, on_fatal=fatal.append)
    thread.start()
    wait_until(lambda: len(turns) > 4 * threads.FATAL_TURNS, "it goes on")
    thread.stop()
    assert not fatal


def test_a_failure_after_a_long_good_turn_begins_the_count_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A loop that is thrown out once a day has not failed on end for days."""
    monkeypatch.setattr(threads, "FATAL_S", 0.0)
    monkeypatch.setattr(threads, "SETTLED_S", 0.0)
    turns = []
    fatal: list[str] = []

    def turn() -> bool:
        turns.append(1)
        return False

    thread = SupervisedThread("t-rarely", turn, on_fatal=fatal.append)
    thread.start()
    wait_until(lambda: len(turns) > 3 * threads.FATAL_TURNS, "it goes on")
    thread.stop()
    assert not fatal


@pytest.mark.parametrize("kind", [PanicError, SystemExit, KeyboardInterrupt])
def test_what_is_no_exception_is_fatal_at_once(kind: type[BaseException]) -> None:
    reported = queue.SimpleQueue[str]()

    def turn() -> None:
        raise kind("the extension panicked")

    before = errors("t-panic")
    threads.set_fatal_handler(reported.put)
    thread = SupervisedThread("t-panic", turn)
    thread.start()
    assert "the extension panicked" in reported.get(timeout=WAIT_S)
    wait_until(lambda: not thread.alive, "the thread ends")
    assert errors("t-panic") - before == 1


def test_a_stop_wakes_it() -> None:
    woken = threading.Event()
    thread = SupervisedThread("t-stop", woken.wait, wake=woken.set)
    thread.start()
    thread.stop(WAIT_S)
    assert not thread.alive


def test_it_may_stop_itself() -> None:
    def turn() -> None:
        thread.stop()

    thread = SupervisedThread("t-itself", turn)
    thread.start()
    wait_until(lambda: not thread.alive, "it ended itself")


def test_a_stop_cuts_a_pause_short() -> None:
    turned = threading.Event()
    thread = SupervisedThread("t-pause", turned.set, pause_s=600.0)
    thread.start()
    assert turned.wait(WAIT_S)
    thread.stop(WAIT_S)
    assert not thread.alive


def test_what_was_asked_before_a_stop_still_has_its_turn() -> None:
    turns: list[int] = []
    thread = SupervisedThread("t-early", lambda: turns.append(1))
    thread.ask_stop()
    thread.start()
    thread.stop()
    assert turns == [1]


@pytest.mark.parametrize("vital", [True, False])
def test_what_ends_a_thread_for_one_thing_is_told(vital: bool) -> None:
    def work() -> None:
        raise PanicError("it broke")

    fatal: list[str] = []
    before = errors("t-once")
    thread = OneShotThread("t-once", work, label="7", vital=vital, on_fatal=fatal.append)
    assert thread.start()
    thread.join()
    assert errors("t-once") - before == 1
    assert len(fatal) == vital


def test_no_thread_left_is_told_not_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(_self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    before = errors("t-none")
    thread = OneShotThread("t-none", lambda: None)
    monkeypatch.setattr(threading.Thread, "start", none_left)
    assert not thread.start()
    assert errors("t-none") - before == 1


def test_a_thread_of_a_library_does_not_die_in_silence(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    threads.install_excepthook()

    def broken() -> None:
        raise SystemExit("of a library")

    before = errors("other")
    thread = threading.Thread(target=broken, name="a-library")
    thread.start()
    thread.join()
    assert errors("other") - before == 1
    assert "running a-library: SystemExit: of a library" in caplog.text


def test_every_thread_of_ours_is_supervised(repository: Path) -> None:
    """A bare thread ends at its first exception, and nobody hears of it."""
    bare = [
        f"{path.relative_to(repository)}:{node.lineno}"
        for room in ("dflashq", "workers")
        for path in sorted((repository / room).rglob("*.py"))
        if path.parent.name != "system"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute | ast.Name | ast.alias) and _starts_threads(node)
    ]
    assert bare == [], "use dflashq.system.threads"


def _starts_threads(node: ast.Attribute | ast.Name | ast.alias) -> bool:
    name = {ast.Attribute: "attr", ast.Name: "id", ast.alias: "name"}[type(node)]
    return getattr(node, name) in {"Thread", "Timer", "QueueListener", "start_new_thread"}
