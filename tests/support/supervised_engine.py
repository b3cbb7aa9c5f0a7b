"""An emulated engine under a supervisor that records its callbacks."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import requests

from dflashq.config import Settings
from dflashq.engine.profiles import Profile, load_profile
from dflashq.engine.stats import EngineStats
from dflashq.engine.supervisor import EngineSupervisor
from tests.support.engine_emulator import emulated_profile
from tests.support.engine_emulator.questions import body
from tests.support.wait import WAIT_S, wait_until

until = wait_until


def settings_in(tmp_path: Path, **values: Any) -> Settings:
    return Settings(
        _env_file=None,  # type: ignore[call-arg]
        state_dir=tmp_path / "state",
        lock_dir=tmp_path / "locks",
        **values,
    )


def profile_in(tmp_path: Path, model_dir: Path, **options: Any) -> Profile:
    """A profile of the emulated engine that is looked at ten times a second."""
    launch = {"stall_s": 1.0, "poll_s": 0.1, **options.pop("launch", {})}
    path = emulated_profile(tmp_path, model_dir=model_dir, launch=launch, **options)
    return load_profile(str(path), settings_in(tmp_path))


def start(supervisor: EngineSupervisor) -> None:
    """Start the engine and block until it is ready; raises what prevented that."""
    supervisor.launch()
    started = supervisor.wait_started(WAIT_S)
    assert started, "the engine was not ready in time"


class Supervised:
    """A supervisor, its callbacks and its requests in flight. A context manager; starts on entry.

    `values` are settings, `more` goes to the supervisor.
    """

    def __init__(
        self, tmp_path: Path, profile: Profile, values: dict[str, Any] | None = None, **more: Any
    ) -> None:
        self.ready: list[str] = []
        self.down: list[str] = []
        self.failed: list[Exception] = []
        self.stats: list[EngineStats] = []
        self._in_flight, self._lock = 0, threading.Lock()
        self._pool = ThreadPoolExecutor(16)
        self.supervisor = EngineSupervisor(
            profile,
            settings_in(tmp_path, **(values or {})),
            on_ready=lambda url, _: self.ready.append(url),
            on_down=self.down.append,
            on_failed=self.failed.append,
            on_stats=self.stats.append,
            in_flight=lambda: self._in_flight,
            **more,
        )

    def __enter__(self) -> Self:
        start(self.supervisor)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.supervisor.stop(0)
        self._pool.shutdown(wait=True)

    def set_faults(self, **faults: Any) -> None:
        requests.post(f"{self.ready[-1]}/faults", json=faults, timeout=WAIT_S).raise_for_status()

    def ask(self, *ids: int) -> Future[requests.Response]:
        """A generation in a thread, counted while it is in flight."""
        return self._pool.submit(self._ask, self.ready[-1], list(ids))

    def _ask(self, url: str, ids: list[int]) -> requests.Response:
        with self._lock:
            self._in_flight += 1
        try:
            return requests.post(f"{url}/generate", json=body(ids), timeout=WAIT_S)
        finally:
            with self._lock:
                self._in_flight -= 1
