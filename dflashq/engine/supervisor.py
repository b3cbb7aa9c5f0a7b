"""The engine's life as the worker sees it: up, down, up again on other ports, or given up."""

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
from dflashq.core.errors import (
    DflashqError,
    EngineError,
    EngineMismatchError,
    EngineStartError,
)
from dflashq.engine.gpu_lock import GpuLock, gpu_memory_used_mb
from dflashq.engine.health_monitor import EngineHealthMonitor
from dflashq.engine.process import Engine, new_engine
from dflashq.engine.profile_match import check_server
from dflashq.engine.profiles import Profile
from dflashq.engine.stats import EngineStats
from dflashq.system.threads import OneShotThread

log = logging.getLogger(__name__)

STARTING, READY, DOWN, FAILED, STOPPED = "starting", "ready", "down", "failed", "stopped"
_WATCH_S = 0.2
_BUDGET_WINDOW_S = 3600.0
_PAUSE_S = 1.0
_GPU_WAIT_S, _GPU_SLACK_MB = 60.0, 1024
_PORT_TAKEN = re.compile(r"address already in use", re.IGNORECASE)


class EngineSupervisor:
    """Keeps one engine alive from one long-lived thread, which the engine's life is tied to.

    Callbacks come from that thread: `on_ready(base_url, server_info)` after every start,
    `on_down(reason)` as soon as a death is seen, `on_failed(error)` once, when it gives up:
    at the first start that fails, at a server that is not the profile's, or when the restarts
    of an hour (`settings.engine_restarts`) are spent. `on_vitals(vitals)` comes every few seconds
    while it is ready. `truth(base_url, server_info)` is asked before `on_ready` and raises what
    is wrong with a server that should not be used; `in_flight()` says how many requests of ours it
    has: when some are in flight and no token moves for the profile's `stall_s`, it counts as dead.
    Properties may be read from any thread.
    """

    def __init__(
        self,
        profile: Profile,
        settings: Settings,
        *,
        on_ready: Callable[[str, dict[str, Any]], None],
        on_down: Callable[[str], None],
        on_failed: Callable[[DflashqError], None],
        on_vitals: Callable[[EngineStats], None] = lambda _: None,
        truth: Callable[[str, dict[str, Any]], None] = lambda *_: None,
        in_flight: Callable[[], int] | None = None,
    ) -> None:
        self._profile, self._settings = profile, settings
        self._on_ready, self._on_down, self._on_failed = on_ready, on_down, on_failed
        self._on_vitals, self._truth, self._in_flight = on_vitals, truth, in_flight
        self._lock = GpuLock(settings.lock_dir, settings.gpu)
        # Never begun anew: the engine's process lives as long as the thread that started it.
        self._thread = OneShotThread("engine", self._run, vital=True)
        self._stop, self._wake, self._settled = (threading.Event() for _ in range(3))
        self._grace_s = profile.launch.stop_grace_s
        self._order: str | None = None
        self._deaths: deque[float] = deque()
        self._gpu_before: int | None = None
        self._engine: Engine | None = None
        self.state = STARTING
        self.error: DflashqError | None = None
        self.server_info: dict[str, Any] = {}
        self.stats: EngineStats | None = None
        self.generation = 0

    @property
    def base_url(self) -> str:
        """Address of the current engine; empty before its first start."""
        return self._engine.base_url if self._engine is not None else ""

    def start(self) -> None:
        """Start and block until the engine is ready; raises what kept it from that."""
        self.launch()
        try:
            self._settled.wait()
        except BaseException:
            self.stop(0)
            raise
        if not self.wait_started(0):
            raise EngineStartError("the engine was stopped before it was ready.")

    def launch(self) -> None:
        """Start without waiting. EngineError when another worker of this host has the GPU."""
        self._lock.acquire()
        self._gpu_before = gpu_memory_used_mb(self._settings.gpu)
        if not self._thread.start():
            raise EngineStartError("this host has no thread left to watch over an engine.")

    def wait_started(self, timeout_s: float) -> bool:
        """True once it was ready, False after `timeout_s`; raises what made the start fail."""
        if not self._settled.wait(timeout_s):
            return False
        if self.error is not None:
            self.stop(0)
            raise self.error
        return self.generation > 0

    def restart(self, reason: str) -> None:
        """Kill the engine and start another, as after a death; it spends a restart. Any thread."""
        self._order = reason
        self._wake.set()

    def forgive(self) -> None:
        """Give the last death back to the budget, when a prompt is to blame for it.

        Called from within `on_down` it comes before the budget is looked at.
        """
        with contextlib.suppress(IndexError):
            self._deaths.pop()

    def stop(self, grace_s: float | None = None) -> None:
        """End the engine and the thread; blocks until both are gone. Safe to repeat.

        `grace_s` (the profile's own by default) is what the server gets to end by itself.
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
                reason = self._live()
                if reason is not None and not self._stop.is_set():
                    self._spend(reason)
            self.state = STOPPED
        except DflashqError as exc:
            self._fail(exc)
        except Exception as exc:
            log.exception("engine supervisor broke")
            self._fail(EngineError(f"the engine's supervisor broke: {exc!r}."))
        finally:
            self._settled.set()

    def _live(self) -> str | None:
        """One start to its end; the reason of its death, or None when it was told to stop."""
        self.state = STARTING
        self._order = None  # it was meant for the engine that is gone
        engine = self._engine = new_engine(self._profile, self._settings, self.generation + 1)
        try:
            death = self._bring_up(engine) or self._watch(engine)
            if death is not None and not self._stop.is_set():
                self._mourn(death)
            return death
        finally:
            engine.stop(self._grace_s if self._stop.is_set() else 0)

    def _bring_up(self, engine: Engine) -> str | None:
        try:
            engine.start()
            report = engine.wait_ready(self._profile.launch.start_timeout_s, self._stop)
        except EngineStartError as exc:
            if self._stop.is_set():
                return None
            # A start that never worked will not work by itself; a lost port is bad luck.
            if self.generation == 0 and not _PORT_TAKEN.search(str(exc)):
                raise
            return str(exc)
        check_server(self._profile, report)
        try:
            self._truth(engine.base_url, report)
        except EngineMismatchError:
            raise
        except EngineError as exc:
            # It fell silent while it was checked: a death like any other, once one has worked.
            if self.generation == 0:
                raise
            return str(exc)
        self.server_info = report
        self.generation += 1
        self.state = READY
        log.info("engine %s ready at %s", self._profile.name, engine.base_url)
        self._on_ready(engine.base_url, report)
        self._settled.set()
        return None

    def _watch(self, engine: Engine) -> str | None:
        launch, key = self._profile.launch, self._settings.engine_api_key
        api_key = key if launch.kind == "external" else None
        watch = EngineHealthMonitor(launch, engine.base_url, api_key, self._in_flight)
        while not self._stop.is_set():
            if self._order is not None:
                reason, self._order = self._order, None
                return reason
            if not engine.is_up():
                return engine.obituary()
            stats, stalled = watch.look(time.monotonic())
            if stats is not None:
                self.stats = stats
                self._on_vitals(stats)
            if stalled is not None:
                return f"the engine hangs: {stalled}. It is killed and started again."
            self._wake.wait(_WATCH_S)
            self._wake.clear()
        return None

    def _mourn(self, reason: str) -> None:
        self.state, self.stats = DOWN, None
        self._deaths.append(time.monotonic())
        log.warning("engine %s is down: %s", self._profile.name, reason)
        self._on_down(reason)

    def _spend(self, reason: str) -> None:
        """Go on within the budget, or raise. Waits for the GPU's memory, and a little longer."""
        oldest = time.monotonic() - _BUDGET_WINDOW_S
        while self._deaths and self._deaths[0] < oldest:
            self._deaths.popleft()
        if len(self._deaths) > self._settings.engine_restarts:
            raise EngineError(
                f"the engine died {len(self._deaths)} times within an hour and is not started "
                f"again. The last time: {reason}"
            )
        self._await_gpu()
        # Back-off, cut short by a stop.
        self._stop.wait(min(30.0, _PAUSE_S * 2 ** max(0, len(self._deaths) - 1)) - _PAUSE_S)

    def _await_gpu(self) -> None:
        """Block until a killed engine's memory is free again, at most a minute."""
        before = self._gpu_before
        deadline = time.monotonic() + _GPU_WAIT_S
        while before is not None and not self._stop.is_set():
            used = gpu_memory_used_mb(self._settings.gpu)
            if used is None or used <= before + _GPU_SLACK_MB:
                return
            if time.monotonic() > deadline:
                log.warning("GPU %s still holds %d MiB", self._settings.gpu, used)
                return
            self._stop.wait(_WATCH_S)

    def _fail(self, error: DflashqError) -> None:
        self.state, self.error = FAILED, error
        log.error("engine %s failed: %s", self._profile.name, error)
        self._on_failed(error)
