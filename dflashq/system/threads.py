"""Threads that do not die in silence: a failure is logged and counted, and the thread goes on."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from dflashq.core import metrics
from dflashq.core.backoff import delay_s

log = logging.getLogger(__name__)

Fatal = Callable[[str], None]
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 10.0
# A thread that has failed for so long and so often will not recover by itself.
FATAL_S, FATAL_TURNS = 60.0, 5
# After a turn that ran for so long before it failed, failures are counted anew.
SETTLED_S = 300.0
REPEAT_S = 600.0
_KINDS_AT_MOST = 256
_FOREIGN = "other"


@dataclass(slots=True)
class _Failures:
    logged_at: float
    unlogged: int = 0


class _Process:
    """What belongs to the whole process: the kinds of failure so far, and the fatal handler."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.failures: dict[tuple[str, str, str, str], _Failures] = {}
        self.on_fatal: Fatal | None = None


_process = _Process()


def set_fatal_handler(handler: Fatal | None) -> None:
    """Set what ends this process when a thread that it cannot do without cannot go on.

    The handler gets a sentence. It is called from the failing thread and may end the process.
    """
    _process.on_fatal = handler


def install_excepthook() -> None:
    """Log and count what ends a thread that a library started. Safe to repeat."""
    _begin_counting(_FOREIGN)
    threading.excepthook = _report_foreign


def _begin_counting(thread: str) -> None:
    """Start the counter at 0: a series whose first sample is 1 shows no increase, so no alert."""
    metrics.THREAD_ERRORS.add(0, thread=thread)


def _report_foreign(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None:
        name = args.thread.name if args.thread is not None else "unknown"
        report(_FOREIGN, args.exc_value, f"running {name}")


def report(thread: str, exc: BaseException, doing: str = "its turn") -> None:
    """Log and count a failure in a thread. Does not block, does not raise.

    The first failure of a kind is logged with its traceback; the later ones are summed up every ten
    minutes.
    """
    metrics.THREAD_ERRORS.add(thread=thread)
    unlogged = _count((thread, doing, type(exc).__name__, _origin(exc)))
    what = f"{type(exc).__name__}: {exc}"
    if unlogged == 0:
        log.error("a thread failed: thread=%s while=%s: %s", thread, doing, what, exc_info=exc)
    elif unlogged is not None:
        log.error(
            "a thread fails again and again: thread=%s while=%s times=%d: %s",
            thread,
            doing,
            unlogged,
            what,
        )


def _count(key: tuple[str, str, str, str]) -> int | None:
    """How many failures of this kind to log now: 0 for its first, None for none yet."""
    now = time.monotonic()
    with _process.lock:
        kind = _process.failures.get(key)
        if kind is None:
            if len(_process.failures) >= _KINDS_AT_MOST:
                _process.failures.clear()
            _process.failures[key] = _Failures(now)
            return 0
        kind.unlogged += 1
        if now - kind.logged_at < REPEAT_S:
            return None
        count, kind.unlogged, kind.logged_at = kind.unlogged, 0, now
        return count


def _origin(exc: BaseException) -> str:
    """File and line of the raise: failures from one line are of one kind."""
    trace = exc.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"


class SupervisedThread:
    """Runs `turn` again and again, `pause_s` apart, until it is stopped.

    A turn fails by an Exception, which is logged and counted, or by returning False when it has
    reported the failure itself. The next turn comes after a pause that grows. The thread ends when
    all turns of a minute have failed, and at once after any other BaseException (a panic in a Rust
    extension, a SystemExit); it then calls `on_fatal`, or the handler of the process, with a
    sentence. A turn that blocks has to return after `wake`, which `stop` calls.
    """

    def __init__(
        self,
        name: str,
        turn: Callable[[], object],
        *,
        pause_s: float = 0.0,
        wake: Callable[[], object] = lambda: None,
        on_fatal: Fatal | None = None,
    ) -> None:
        self.name, self._turn, self._pause_s = name, turn, pause_s
        self._wake, self._on_fatal = wake, on_fatal
        self._stop = threading.Event()
        self._failures, self._failing_since = 0, 0.0
        _begin_counting(name)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def stopping(self) -> bool:
        """Whether it was told to end."""
        return self._stop.is_set()

    @property
    def alive(self) -> bool:
        """Whether it runs now."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Begin; RuntimeError when the host has no thread left, or when it was begun before."""
        self._thread.start()

    def ask_stop(self) -> None:
        """Let it end after its turn. Does not block; safe to repeat."""
        self._stop.set()
        self._wake()

    def stop(self, timeout_s: float | None = None) -> None:
        """End it; blocks until its turn is over, unless the thread itself calls. Safe to repeat."""
        self.ask_stop()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        # One turn is taken even after a stop: it may have something left to do.
        while True:
            try:
                pause = self._take_turn()
            except BaseException as exc:  # noqa: BLE001 - reported, and then the process is ended
                report(self.name, exc)
                self._give_up(f"{type(exc).__name__}: {exc}")
                return
            if pause is None or self._stop.wait(pause):
                return

    def _take_turn(self) -> float | None:
        """Take one turn. Seconds until the next one; None when the thread has to end."""
        began = time.monotonic()
        try:
            failed, why = self._turn() is False, "see the errors above"
        except Exception as exc:  # noqa: BLE001 - it ends this turn alone
            report(self.name, exc)
            failed, why = True, f"{type(exc).__name__}: {exc}"
        if not failed:
            self._failures = 0
            return self._pause_s
        now = time.monotonic()
        if not self._failures or now - began >= SETTLED_S:
            self._failures, self._failing_since = 0, now
        self._failures += 1
        if self._failures >= FATAL_TURNS and now - self._failing_since >= FATAL_S:
            self._give_up(f"it failed {self._failures} times on end, the last time: {why}")
            return None
        return max(self._pause_s, delay_s(self._failures, FIRST_PAUSE_S, LONGEST_PAUSE_S))

    def _give_up(self, why: str) -> None:
        if not self._stop.is_set():
            call_fatal(self.name, why, self._on_fatal)


class OneShotThread:
    """Runs `work` once. An exception is logged and counted; in a `vital` thread it is fatal.

    `label` is added to the name of this thread; the metric has `name` alone.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], object],
        *,
        label: str = "",
        vital: bool = False,
        daemon: bool = True,
        on_fatal: Fatal | None = None,
    ) -> None:
        self.name, self._work, self._vital, self._on_fatal = name, work, vital, on_fatal
        _begin_counting(name)
        full = f"{name}-{label}" if label else name
        self._thread = threading.Thread(target=self._run, name=full, daemon=daemon)

    @property
    def alive(self) -> bool:
        """Whether it runs now."""
        return self._thread.is_alive()

    def start(self) -> bool:
        """Begin; False, after a report, when the host has no thread left."""
        try:
            self._thread.start()
        except RuntimeError as exc:
            report(self.name, exc, "starting")
            return False
        return True

    def join(self) -> None:
        """Block until it has ended; called from the thread itself, do nothing. Safe to repeat."""
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as exc:  # noqa: BLE001 - the thread ends here, nobody else would report it
            report(self.name, exc)
            if self._vital:
                call_fatal(self.name, f"{type(exc).__name__}: {exc}", self._on_fatal)


def call_fatal(thread: str, why: str, handler: Fatal | None = None) -> None:
    """Log that a thread has ended for good, and call `handler` or that of the process."""
    log.critical("a thread has ended for good: thread=%s: %s", thread, why)
    chosen = handler if handler is not None else _process.on_fatal
    if chosen is None:
        return
    try:
        chosen(f"its thread {thread} cannot go on ({why})")
    except BaseException as exc:  # noqa: BLE001 - the thread ends here, nobody else would report it
        report(thread, exc, "ending the process")
