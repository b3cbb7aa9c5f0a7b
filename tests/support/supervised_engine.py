"""An emulated engine under a supervisor, with what was called back."""

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


class Supervised:
    """A supervisor and the requests that it is told of. A context manager; starts on entry."""

    def __init__(self, tmp_path: Path, profile: Profile, **more: Any) -> None:
        self.ready: list[str] = []
        self.down: list[str] = []
        self.failed: list[Exception] = []
        self.seen: list[EngineStats] = []
        self._asked, self._lock = 0, threading.Lock()
        self._pool = ThreadPoolExecutor(16)
        self.supervisor = EngineSupervisor(
            profile,
            settings_in(tmp_path),
            on_ready=lambda url, _: self.ready.append(url),
            on_down=self.down.append,
            on_failed=self.failed.append,
            on_vitals=self.seen.append,
            in_flight=lambda: self._asked,
            **more,
        )

    def __enter__(self) -> Self:
        self.supervisor.start()
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
            self._asked += 1
        try:
            return requests.post(f"{url}/generate", json=body(ids), timeout=WAIT_S)
        finally:
            with self._lock:
                self._asked -= 1
