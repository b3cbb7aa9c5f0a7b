"""Threads that do not die in silence: a failure is told and counted, and the thread goes on."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from dflashq.core import metrics

log = logging.getLogger(__name__)

Fatal = Callable[[str], None]
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 10.0
# A thread that has failed for so long, and so often, is not going to come right by itself.
FATAL_S, FATAL_TURNS = 60.0, 5
# A turn that went well for so long before it failed begins the count anew.
SETTLED_S = 300.0
REPEAT_S = 600.0
_KINDS_AT_MOST = 256
_FOREIGN = "other"


@dataclass(slots=True)
class _Kind:
    told_at: float
    untold: int = 0


class _Process:
    """What belongs to the whole process: the kinds of failure told so far, and the last resort."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.kinds: dict[tuple[str, str, str, str], _Kind] = {}
        self.on_fatal: Fatal | None = None


_process = _Process()


def set_fatal_handler(handler: Fatal | None) -> None:
    """Say how this process ends when a thread that it cannot do without cannot go on.

    The handler gets a sentence, is called from the failing thread and may end the process.
    """
    _process.on_fatal = handler


def install_excepthook() -> None:
    """Tell and count what ends a thread that a library started. Safe to repeat."""
    _begin_counting(_FOREIGN)
    threading.excepthook = _tell_foreign


def _begin_counting(thread: str) -> None:
    """A series that begins at 1 shows no increase, and alerts nobody."""
    metrics.THREAD_ERRORS.add(0, thread=thread)


def _tell_foreign(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None:
        name = args.thread.name if args.thread is not None else "unknown"
        report(_FOREIGN, args.exc_value, f"running {name}")


def report(thread: str, exc: BaseException, doing: str = "its turn") -> None:
    """Tell and count a failure in a thread. Does not block; never raises for what it tells.

    The first of a kind is an error with its traceback; the others are summed up every ten minutes.
    """
    metrics.THREAD_ERRORS.add(thread=thread)
    untold = _untold((thread, doing, type(exc).__name__, _origin(exc)))
    what = f"{type(exc).__name__}: {exc}"
    if untold == 0:
        log.error("a thread failed: thread=%s while=%s: %s", thread, doing, what, exc_info=exc)
    elif untold is not None:
        log.error(
            "a thread fails again and again: thread=%s while=%s times=%d: %s",
            *(thread, doing, untold, what),
        )


def _untold(key: tuple[str, str, str, str]) -> int | None:
    """0 for the first of its kind; how many came since it was told last; None: not yet again."""
    now = time.monotonic()
    with _process.lock:
        kind = _process.kinds.get(key)
        if kind is None:
            if len(_process.kinds) >= _KINDS_AT_MOST:
                _process.kinds.clear()
            _process.kinds[key] = _Kind(now)
            return 0
        kind.untold += 1
        if now - kind.told_at < REPEAT_S:
            return None
        count, kind.untold, kind.told_at = kind.untold, 0, now
        return count


def _origin(exc: BaseException) -> str:
    """Where it was raised: two failures from one line are of one kind."""
    trace = exc.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"


class SupervisedThread:
    """Runs `turn` again and again, `pause_s` apart, until it is stopped.

    A turn fails by an Exception, or by returning False when it has reported what failed: it is
    told and counted, and the next one comes after a pause that grows. Once turns have failed on
    end for a minute, and at once after any other BaseException (a panic in a Rust extension, a
    SystemExit), the thread ends and calls `on_fatal`, by default that of the process, with a
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
        """Whether it was asked to end."""
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
        # A turn comes even when the stop came first: it may have something left to do.
        while True:
            try:
                pause = self._take_turn()
            except BaseException as exc:  # noqa: BLE001 - told, and then the process is ended
                report(self.name, exc)
                self._give_up(f"{type(exc).__name__}: {exc}")
                return
            if pause is None or self._stop.wait(pause):
                return

    def _take_turn(self) -> float | None:
        """Seconds until the next turn; None when there is no hope of one."""
        began = time.monotonic()
        try:
            failed, why = self._turn() is False, "see the errors above"
        except Exception as exc:  # noqa: BLE001 - whatever it is, it costs this turn alone
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
        growing = FIRST_PAUSE_S * 2.0 ** min(self._failures - 1, 16)
        return max(self._pause_s, min(growing, LONGEST_PAUSE_S))

    def _give_up(self, why: str) -> None:
        if not self._stop.is_set():
            call_fatal(self.name, why, self._on_fatal)


class OneShotThread:
    """Runs `work` once. An exception is told and counted; in a `vital` thread it is fatal.

    `label` makes the name of this one thread; the metric has `name` alone.
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
        """Begin; False, told and counted, when the host has no thread left for it."""
        try:
            self._thread.start()
        except RuntimeError as exc:
            report(self.name, exc, "starting")
            return False
        return True

    def join(self) -> None:
        """Block until it has ended; not for the thread itself. Safe to repeat."""
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as exc:  # noqa: BLE001 - the thread ends here, nobody else would tell
            report(self.name, exc)
            if self._vital:
                call_fatal(self.name, f"{type(exc).__name__}: {exc}", self._on_fatal)


def call_fatal(thread: str, why: str, handler: Fatal | None = None) -> None:
    """A thread has ended for good: tell it, and let the process end as it was told to."""
    log.critical("a thread has ended for good: thread=%s: %s", thread, why)
    chosen = handler if handler is not None else _process.on_fatal
    if chosen is None:
        return
    try:
        chosen(f"its thread {thread} cannot go on ({why})")
    except BaseException as exc:  # noqa: BLE001 - the thread ends here, nobody else would tell
        report(thread, exc, "ending the process")
