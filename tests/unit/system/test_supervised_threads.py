"""The users of supervised threads: each goes on after a failure, or ends its process loudly."""

from __future__ import annotations

import asyncio
import errno
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from celery.worker import state as worker_state

from dflashq.core import metrics
from dflashq.core.errors import ConfigError, EngineError
from dflashq.ledger import Lease, LeaseHeartbeat
from dflashq.operations.monitoring.actions import RunActions
from dflashq.operations.monitoring.poller import LedgerPoller
from dflashq.stages.event_loop import EventLoopThread
from dflashq.system.ports import free_port
from tests.support.wait import WAIT_S, wait_until
from workers import metrics_server as worker_metrics
from workers.bootsteps import ENGINE_LOST, FRESH_START, USAGE, EngineStep, _stop_worker
from workers.metrics_server import MetricsHttpServer

EXHAUSTED = OSError(errno.EMFILE, "Too many open files")


def errors(thread: str) -> float:
    return metrics.THREAD_ERRORS.counts().get((thread,), 0)


def test_a_callback_that_fails_on_the_loop_is_told_and_the_loop_turns_on() -> None:
    before, loop = errors("generations"), EventLoopThread()

    def broken() -> None:
        raise ValueError("of a callback")

    loop.loop.call_soon_threadsafe(broken)
    assert loop.run(asyncio.sleep(0, "it turns")) == "it turns"
    assert errors("generations") - before == 1
    loop.close()


def test_a_loop_that_is_thrown_out_of_its_round_goes_on_with_what_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, loop = errors("generations"), EventLoopThread()
    waiting = loop.submit(asyncio.sleep(0.2, "it came back"))
    selector: Any = loop.loop._selector  # type: ignore[attr-defined]
    right, failures = selector.select, iter([EXHAUSTED])

    def select(timeout: float | None = None) -> object:
        if (failure := next(failures, None)) is not None:
            raise failure
        return right(timeout)

    monkeypatch.setattr(selector, "select", select)
    loop.loop.call_soon_threadsafe(lambda: None)
    assert waiting.result(WAIT_S) == "it came back"
    assert errors("generations") - before == 1
    loop.close()


def test_a_heartbeat_goes_on_after_what_nobody_expected() -> None:
    beats = threading.Semaphore(0)
    failures = iter([EXHAUSTED, ValueError("of a bug")])

    def renew(_run: str, leases: list[Lease], _ttl_s: float) -> tuple[str, list[bool]]:
        if (failure := next(failures, None)) is not None:
            raise failure
        beats.release()
        return "active", [True for _ in leases]

    before = errors("lease-keeper")
    heartbeat = LeaseHeartbeat(Mock(renew=renew, state=lambda _: "active"), 0.03)
    heartbeat.hold(Lease("run", "b", "", "w", 1), lambda _: None)
    heartbeat.start()
    assert beats.acquire(timeout=WAIT_S)
    heartbeat.stop()
    assert errors("lease-keeper") - before == 2


@pytest.mark.parametrize("both", [True, False])
def test_one_broken_run_does_not_end_the_heartbeat_of_the_others(both: bool) -> None:
    def state(run: str) -> str:
        if both or run == "bad":
            raise ValueError("of a bug")
        return "active"

    renew = Mock(side_effect=lambda run, leases, _: (state(run), [True for _ in leases]))
    heartbeat = LeaseHeartbeat(Mock(renew=renew, state=state), 30.0)
    for run in ("bad", "good"):
        heartbeat.hold(Lease(run, "b", "", "w", 1), lambda _: None)
    assert heartbeat._beat() is not both


def test_an_observer_outlives_an_error_of_its_own_and_shows_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dflashq.operations.monitoring.poller.MonitorStore", Mock())
    monkeypatch.setattr("dflashq.operations.monitoring.poller.POLL_S", 0.01)
    before = errors("observer")
    poller = LedgerPoller(Mock(), Mock(workers=Mock(side_effect=KeyError("bug"))), Mock())
    poller.start()
    wait_until(lambda: errors("observer") - before >= 2, "it looks again")
    assert "KeyError" in poller.last_error
    poller.stop()


def test_a_rerun_that_breaks_is_told_in_the_feed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "dflashq.operations.monitoring.actions.rerun_rejected", Mock(side_effect=KeyError("bug"))
    )
    sentences: list[str] = []
    store = Mock(append_events=lambda run, events: sentences.append(events[0]["text"]))
    actions = RunActions(Mock(now_s=lambda: 1.0), Mock(), Mock(), store)
    before = errors("rerun")
    actions.rerun("r", "somebody", None)
    wait_until(lambda: errors("rerun") - before == 1, "it is counted")
    assert "could not put them back" in sentences[-1]
    assert "KeyError" in sentences[-1]


def test_a_scrape_that_fails_is_told_and_the_next_is_answered() -> None:
    texts = iter([ValueError("of a bug"), b"fine\n"])

    def text() -> bytes:
        outcome = next(texts)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    before, port = errors("metrics"), free_port()
    server = MetricsHttpServer("127.0.0.1", port, text)
    url = f"http://127.0.0.1:{port}/metrics"
    with pytest.raises(OSError):  # noqa: PT011 - the connection ends without an answer
        urllib.request.urlopen(url, timeout=WAIT_S)
    with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
        assert answer.read() == b"fine\n"
    server.stop()
    assert errors("metrics") - before == 1


def test_a_listener_without_descriptors_does_not_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(worker_metrics.time, "sleep", pauses.append)
    before = errors("metrics")
    server = MetricsHttpServer("127.0.0.1", free_port(), lambda: b"")
    monkeypatch.setattr(server._server, "socket", Mock(accept=Mock(side_effect=EXHAUSTED)))
    with pytest.raises(OSError, match="Too many open files"):
        server._server.get_request()
    assert pauses == [worker_metrics.ACCEPT_PAUSE_S]
    assert errors("metrics") - before == 1


# --- how a process ends


@pytest.fixture
def step(monkeypatch: pytest.MonkeyPatch) -> EngineStep:
    monkeypatch.setattr(worker_state, "should_stop", None)
    monkeypatch.setattr(worker_state, "should_terminate", None)
    parent = SimpleNamespace(hostname="rows@h", app=Mock())
    return EngineStep(parent, rows=True)


def test_a_consumer_that_ends_by_itself_is_no_clean_exit(step: EngineStep) -> None:
    """Celery aborts out of descriptors with no exit code of its own, which would be 0."""
    parent = SimpleNamespace(exitcode=None)
    step.terminate(parent)
    assert parent.exitcode == FRESH_START


@pytest.mark.parametrize("flag", ["should_stop", "should_terminate"])
def test_a_second_signal_keeps_its_own_exit_code(
    step: EngineStep, flag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_state, flag, 0)
    parent = SimpleNamespace(exitcode=None)
    step.terminate(parent)
    assert parent.exitcode is None


def test_a_wrong_setting_that_the_engine_reveals_is_never_restarted(
    step: EngineStep,
) -> None:
    for error, code in ((ConfigError("too few"), USAGE), (EngineError("dead"), ENGINE_LOST)):
        _stop_worker(error)
        assert worker_state.should_stop == code


MONITOR = """
import sys
from unittest.mock import Mock
from dflashq.core.errors import DflashqError
from dflashq.operations.monitoring import poller
poller.MonitorStore = Mock()
from dflashq.web import app
class PanicError(BaseException): pass
ledger = Mock(workers=Mock(side_effect=PanicError))
monitor = Mock(poller=poller.LedgerPoller(Mock(), ledger, Mock()))
try:
    app.serve(Mock(), "127.0.0.1", int(sys.argv[1]), monitor, lambda: None)
except DflashqError as exc:
    sys.exit(f"ends: {exc}")
"""


def test_a_monitor_whose_observer_is_gone_ends_with_a_sentence(repository: Path) -> None:
    """A page that shows the numbers of the day before yesterday is worse than none."""
    done = subprocess.run(
        [sys.executable, "-c", MONITOR, str(free_port())],
        cwd=repository,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "the monitor ends: its thread observer cannot go on (PanicError" in done.stderr
    assert "The runs go on" in done.stderr
