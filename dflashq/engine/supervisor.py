"""The life of a worker's engine: started, watched, restarted on other ports, or given up."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from dflashq.config import Settings
from dflashq.core.backoff import delay_s
from dflashq.core.errors import (
    DflashqError,
    EngineError,
    EngineMismatchError,
    EngineStartError,
)
from dflashq.engine.gpu_lock import GpuLock, gpu_memory_used_mib
from dflashq.engine.health_monitor import EngineHealthMonitor
from dflashq.engine.process import Engine, new_engine
from dflashq.engine.profile_match import check_server
from dflashq.engine.profiles import Profile
from dflashq.engine.stats import EngineStats
from dflashq.system.threads import OneShotThread

log = logging.getLogger(__name__)

STARTING, READY, DOWN, FAILED, STOPPED = "starting", "ready", "down", "failed", "stopped"
_POLL_S = 0.2
_BUDGET_WINDOW_S = 3600.0
_BACKOFF_S, _BACKOFF_CAP_S = 1.0, 30.0
_GPU_WAIT_S, _GPU_SLACK_MIB = 60.0, 1024
_PORT_TAKEN = re.compile(r"address already in use", re.IGNORECASE)


class EngineSupervisor:
    """Keeps one engine alive, from one thread that lives as long as the worker.

    All callbacks are called from that thread:

    - `on_ready(base_url, server_info)` after every start;
    - `on_down(reason)` as soon as the engine is found dead;
    - `on_failed(error)` once, when the supervisor gives up: the first start fails, the server is
      not the one of the profile, or the engine died more often within an hour than
      `settings.engine_restarts` allows;
    - `on_stats(stats)` every few seconds while the engine is ready;
    - `check(base_url, server_info)` before `on_ready`; it raises EngineMismatchError for a server
      that must not be used, EngineError for one that stopped answering;
    - `in_flight()` returns how many requests this worker has in the engine. While there are some
      and no token moves for the profile's `stall_s`, the engine counts as dead.

    `state`, `error` (why it gave up) and `starts` (how often an engine became ready) may be read
    from any thread.
    """

    def __init__(
        self,
        profile: Profile,
        settings: Settings,
        *,
        on_ready: Callable[[str, dict[str, Any]], None],
        on_down: Callable[[str], None],
        on_failed: Callable[[DflashqError], None],
        on_stats: Callable[[EngineStats], None] = lambda _: None,
        check: Callable[[str, dict[str, Any]], object] = lambda *_: None,
        in_flight: Callable[[], int] | None = None,
    ) -> None:
        self._profile, self._settings = profile, settings
        self._on_ready, self._on_down, self._on_failed = on_ready, on_down, on_failed
        self._on_stats, self._check, self._in_flight = on_stats, check, in_flight
        self._lock = GpuLock(settings.lock_dir, settings.gpu)
        # One shot: the engine's process dies with the thread that started it.
        self._thread = OneShotThread("engine", self._run, vital=True)
        self._stop, self._wake, self._settled = (threading.Event() for _ in range(3))
        self._grace_s = profile.launch.stop_grace_s
        self._restart_reason: str | None = None
        self._deaths: deque[float] = deque()
        self._gpu_idle_mib: int | None = None
        self._engine: Engine | None = None
        self.state = STARTING
        self.error: DflashqError | None = None
        self.starts = 0

    def launch(self) -> None:
        """Start without waiting for the engine; call it once.

        EngineError when another worker of this host has the GPU.
        """
        self._lock.acquire()
        self._gpu_idle_mib = gpu_memory_used_mib(self._settings.gpu)
        if not self._thread.start():
            raise EngineStartError("this host has no thread left to supervise an engine.")

    def wait_started(self, timeout_s: float) -> bool:
        """Block until the first start is over; False when that takes longer than `timeout_s`.

        True when the engine became ready. Raises the error that made the start fail.
        """
        if not self._settled.wait(timeout_s):
            return False
        if self.error is not None:
            self.stop(0)
            raise self.error
        return self.starts > 0

    def restart(self, reason: str) -> None:
        """Kill the engine and start another. It counts as a death. Any thread; does not block."""
        self._restart_reason = reason
        self._wake.set()

    def refund_deaths(self, count: int) -> None:
        """Give the last `count` deaths back to the restart budget: a prompt was to blame.

        Any thread; called from within `on_down` it takes effect before the budget is checked.
        """
        with contextlib.suppress(IndexError):
            for _ in range(count):
                self._deaths.pop()

    def stop(self, grace_s: float | None = None) -> None:
        """End the engine and the thread; blocks until both are gone. Safe to repeat.

        `grace_s`: seconds between SIGTERM and SIGKILL, by default the profile's.
        """
        if grace_s is not None:
            self._grace_s = grace_s
        self._stop.set()
        self._wake.set()
        self._thread.join()
        self._lock.release()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                reason = self._run_once()
                if reason is not None and not self._stop.is_set():
                    self._charge_restart_budget(reason)
            self.state = STOPPED
        except DflashqError as exc:
            self._fail(exc)
        except Exception as exc:
            log.exception("engine supervisor broke")
            self._fail(EngineError(f"the engine's supervisor broke: {exc!r}."))
        finally:
            self._settled.set()

    def _run_once(self) -> str | None:
        """One start of the engine to its end: why it died, or None after `stop`."""
        self.state = STARTING
        self._restart_reason = None  # a request that came late was for the engine that is gone
        engine = self._engine = new_engine(self._profile, self._settings, self.starts + 1)
        try:
            death = self._start_and_check(engine) or self._watch(engine)
            if death is not None and not self._stop.is_set():
                self._on_death(death)
            return death
        finally:
            engine.stop(self._grace_s if self._stop.is_set() else 0)

    def _start_and_check(self, engine: Engine) -> str | None:
        """Start the engine and announce that it is ready; why it died instead, or None."""
        try:
            engine.start()
            report = engine.wait_ready(self._profile.launch.start_timeout_s, self._stop)
        except EngineStartError as exc:
            if self._stop.is_set():
                return None
            # A first start that fails would fail again, unless another process took its port.
            if self.starts == 0 and not _PORT_TAKEN.search(str(exc)):
                raise
            return str(exc)
        check_server(self._profile, report)
        try:
            self._check(engine.base_url, report)
        except EngineMismatchError:
            raise
        except EngineError as exc:
            # It stopped answering during the check: a death, if an earlier start has worked.
            if self.starts == 0:
                raise
            return str(exc)
        self.starts += 1
        self.state = READY
        log.info("engine %s ready at %s", self._profile.name, engine.base_url)
        self._on_ready(engine.base_url, report)
        self._settled.set()
        return None

    def _watch(self, engine: Engine) -> str | None:
        """Block until the engine dies or hangs; the reason, or None after `stop`."""
        key = self._profile.api_key(self._settings)
        monitor = EngineHealthMonitor(self._profile.launch, engine.base_url, key, self._in_flight)
        while not self._stop.is_set():
            if self._restart_reason is not None:
                reason, self._restart_reason = self._restart_reason, None
                return reason
            if not engine.is_up():
                return engine.describe_exit()
            stats, stalled = monitor.poll(time.monotonic())
            if stats is not None:
                self._on_stats(stats)
            if stalled is not None:
                return f"the engine hangs: {stalled}. It is killed and started again."
            self._wake.wait(_POLL_S)
            self._wake.clear()
        return None

    def _on_death(self, reason: str) -> None:
        self.state = DOWN
        self._deaths.append(time.monotonic())
        log.warning("engine %s is down: %s", self._profile.name, reason)
        self._on_down(reason)

    def _charge_restart_budget(self, reason: str) -> None:
        """Block until the next start may begin: the GPU's memory is free, the back-off is over.

        EngineError when the deaths of the last hour exceed the budget.
        """
        oldest = time.monotonic() - _BUDGET_WINDOW_S
        while self._deaths and self._deaths[0] < oldest:
            self._deaths.popleft()
        if len(self._deaths) > self._settings.engine_restarts:
            raise EngineError(
                f"the engine died {len(self._deaths)} times within an hour and is not started "
                f"again. The last time: {reason}"
            )
        self._await_gpu()
        # None after the first death, then doubled; `stop` cuts it short.
        backoff_s = delay_s(len(self._deaths), _BACKOFF_S, _BACKOFF_CAP_S)
        self._stop.wait(backoff_s - _BACKOFF_S)

    def _await_gpu(self) -> None:
        """Block until the GPU memory of the killed engine is free again, at most a minute."""
        idle = self._gpu_idle_mib
        deadline = time.monotonic() + _GPU_WAIT_S
        while idle is not None and not self._stop.is_set():
            used = gpu_memory_used_mib(self._settings.gpu)
            if used is None or used <= idle + _GPU_SLACK_MIB:
                return
            if time.monotonic() > deadline:
                log.warning("GPU %s still holds %d MiB", self._settings.gpu, used)
                return
            self._stop.wait(_POLL_S)

    def _fail(self, error: DflashqError) -> None:
        self.state, self.error = FAILED, error
        log.error("engine %s failed: %s", self._profile.name, error)
        self._on_failed(error)
