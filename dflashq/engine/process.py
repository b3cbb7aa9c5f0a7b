"""One engine server: a process that we start and own, or one that runs elsewhere."""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any, Protocol

import requests
from pydantic import SecretStr

from dflashq.config import Settings
from dflashq.core.errors import ConfigError, EngineError, EngineStartError
from dflashq.engine.dialects import DIALECTS
from dflashq.engine.http_probe import get_json
from dflashq.engine.profiles import Profile
from dflashq.engine.readiness import Readiness
from dflashq.system import ports, processes

log = logging.getLogger(__name__)

_POLL_S = 0.3
_LOGS_KEPT = 20
_TAIL_BYTES = 4000
_MISSES, _MISS_S = 3, 2.0  # an external server is gone after 3 failed requests, 2 s apart


class Engine(Protocol):
    """What the supervisor needs of a server. All methods are called from one thread."""

    base_url: str

    def start(self) -> None:
        """Start the server without waiting for it."""

    def wait_ready(self, timeout_s: float, stop: threading.Event) -> dict[str, Any]:
        """Block until it generates a token; returns what it reports about itself.

        EngineStartError when that takes longer than `timeout_s`, or `stop` is set.
        """

    def is_up(self) -> bool:
        """Whether the server is still there; it may hang all the same."""

    def describe_exit(self) -> str:
        """Why it is gone, with the tail of its log if it has one."""

    def stop(self, grace_s: float) -> None:
        """End the server; blocks until it is gone. Safe to repeat."""


def new_engine(profile: Profile, settings: Settings, number: int) -> Engine:
    """The server of a profile, not started yet.

    `number` counts the starts of this worker. ConfigError when an external one has no address.
    """
    if profile.launch.kind == "external":
        return ExternalEngine(profile, profile.api_key(settings))
    return EngineProcess(profile, settings, number=number)


class EngineProcess:
    """A server process that we start: it dies with the thread that started it.

    It listens on free ports, and its whole process group is killed. `number` is part of the name
    of its log file.
    """

    def __init__(self, profile: Profile, settings: Settings, *, number: int = 1) -> None:
        self._profile, self._settings = profile, settings
        self.port = _free_port()
        self.nccl_port = _free_port(but=frozenset({self.port}))
        self.base_url = f"http://127.0.0.1:{self.port}"
        gpu = re.sub(r"[^A-Za-z0-9]+", "-", settings.gpu) or "cpu"
        self._log_stem = f"engine-{profile.name}-{gpu}-"
        name = f"{self._log_stem}{os.getpid()}-{number}.log"
        self.log_file = settings.state_dir / "logs" / name
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The id of the process and of its group. EngineError before the start."""
        return self._started().pid

    def start(self) -> None:
        """Start the process without waiting for it.

        ConfigError when the python or the model of the profile does not exist.
        """
        argv = self._argv()
        self._make_log_folder()
        env = dict(self._profile.launch.env)
        if self._settings.gpu:
            env["CUDA_VISIBLE_DEVICES"] = self._settings.gpu
        with self.log_file.open("wb") as sink:
            self._process = processes.spawn_without_secrets(argv, env, sink)
        log.info("engine %s started: pid=%d %s", self._profile.name, self.pid, self.base_url)

    def wait_ready(self, timeout_s: float, stop: threading.Event) -> dict[str, Any]:
        """Block until the server generates one token; returns what it reports about itself.

        EngineStartError when the process dies or needs more than `timeout_s` (with the tail of its
        log), or `stop` is set.
        """
        key = self._profile.api_key(self._settings)
        ready = Readiness(self._profile, self.base_url, key)
        deadline = time.monotonic() + timeout_s
        while True:
            if stop.is_set():
                raise EngineStartError("the start of the engine was called off.")
            if not self.is_up():
                raise EngineStartError(f"the engine did not start: {self.describe_exit()}")
            if ready.reached():
                return ready.server_info
            if time.monotonic() > deadline:
                raise EngineStartError(
                    f"the engine was not ready after {timeout_s:.0f} s ({ready.missing}). "
                    + self._tail()
                )
            stop.wait(_POLL_S)

    def is_up(self) -> bool:
        """True while the process runs; it may still hang."""
        return self._process is not None and not processes.has_exited(self._process)

    def describe_exit(self) -> str:
        """How the process ended, and the tail of its log. Kills what is left of its group."""
        self.stop(0)
        code = self._started().returncode
        ending = f"it exited with {code}"
        if code is not None and code < 0:
            ending = f"it was killed by {signal.Signals(-code).name}"
        if code == -signal.SIGKILL:
            ending += " (by itself after a crash of one of its processes, or for lack of memory)"
        return f"{ending}. {self._tail()}"

    def stop(self, grace_s: float) -> None:
        """Send SIGTERM to the group, wait `grace_s`, send SIGKILL; blocks until it is gone.

        Safe to repeat, also before the start.
        """
        if self._process is not None and not processes.end(self._process, grace_s):
            log.error("engine pid=%d: a process of its group survived SIGKILL", self.pid)

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise EngineError("the engine was not started.")
        return self._process

    def _argv(self) -> list[str]:
        launch, model = self._profile.launch, self._profile.model
        if launch.kind == "sglang":
            if shutil.which(launch.python) is None:
                raise ConfigError(
                    f"profile {self._profile.name!r} starts its engine with {launch.python}, which "
                    "is not there: install the engine, or set DFLASHQ_ENGINE_PYTHON."
                )
            if not model.path or not Path(model.path).is_dir():
                raise ConfigError(
                    f"profile {self._profile.name!r} finds no model folder at {model.path!r}: "
                    "download the model, or set DFLASHQ_MODEL_PATH."
                )
        gpu = self._settings.gpu
        return self._profile.argv(self.port, self.nccl_port, model.path, launch.python, gpu)

    def _make_log_folder(self) -> None:
        folder = self.log_file.parent
        folder.mkdir(parents=True, exist_ok=True)
        logs = sorted(folder.glob(f"{self._log_stem}*.log"), key=lambda f: f.stat().st_mtime)
        for old in logs[: -_LOGS_KEPT + 1]:
            old.unlink(missing_ok=True)

    def _tail(self) -> str:
        if not self.log_file.exists():
            return f"Its log {self.log_file} is gone."
        body = self.log_file.read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
        lines = "\n".join(body.splitlines()[-20:])
        return f"The end of its log {self.log_file}:\n{lines}"


class ExternalEngine:
    """A server that runs elsewhere, at a fixed address: it is neither started nor stopped."""

    def __init__(self, profile: Profile, api_key: SecretStr | None = None) -> None:
        if not profile.launch.url:
            raise ConfigError(
                f"profile {profile.name!r} is for a server that someone else runs, and has no "
                "address: set DFLASHQ_ENGINE_URL, and DFLASHQ_ENGINE_API_KEY if it wants a key."
            )
        self._profile, self._api_key = profile, api_key
        self.base_url = profile.launch.url.rstrip("/")
        self._alive_url = self.base_url + DIALECTS[profile.launch.dialect].alive_path
        self._misses = 0
        self._requested_at = 0.0
        self._last_error = ""

    def start(self) -> None:
        """Do nothing: the server runs already."""

    def wait_ready(self, timeout_s: float, stop: threading.Event) -> dict[str, Any]:
        """Block until the server generates one token; returns what it reports about itself.

        EngineStartError when that takes longer than `timeout_s`, or `stop` is set.
        """
        ready = Readiness(self._profile, self.base_url, self._api_key)
        deadline = time.monotonic() + timeout_s
        while not ready.reached():
            if stop.is_set() or time.monotonic() > deadline:
                raise EngineStartError(
                    f"the engine at {self.base_url} is not ready: {ready.missing}."
                )
            stop.wait(_POLL_S)
        return ready.server_info

    def is_up(self) -> bool:
        """False after three failed requests in a row, two seconds apart. Blocks for seconds."""
        if time.monotonic() - self._requested_at >= _MISS_S:
            self._requested_at = time.monotonic()
            try:
                get_json(self._alive_url, self._api_key)
                self._misses = 0
            except requests.RequestException as exc:
                self._misses, self._last_error = self._misses + 1, type(exc).__name__
        return self._misses < _MISSES

    def describe_exit(self) -> str:
        """How the last request failed."""
        return f"the engine at {self.base_url} does not answer ({self._last_error})."

    def stop(self, grace_s: float) -> None:
        """Do nothing: the server belongs to someone else."""


def _free_port(*, but: frozenset[int] = frozenset()) -> int:
    """A port that is free on every address; EngineError, so that the start is tried again."""
    try:
        return ports.free_port(host=ports.EVERYWHERE, but=but)
    except ports.NoFreePortError as exc:
        raise EngineError(str(exc)) from None
