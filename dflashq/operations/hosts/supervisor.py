"""`dflashq host up`: a worker for every GPU, started again when it dies, drained together."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from dflashq.config import Settings
from dflashq.core.errors import DflashqError, EngineError
from dflashq.core.humanize import counted
from dflashq.engine.profiles import Profile
from dflashq.operations.hosts.gpus import Gpu
from dflashq.operations.hosts.worker_process import USAGE, WorkerProcess
from dflashq.system.file_lock import FileLock, LockHeldError

Echo = Callable[[str], None]
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)


class WorkersGoneError(DflashqError):
    """Every worker has ended and none will be started again."""

    def __init__(self, sentence: str, exit_code: int) -> None:
        self.exit_code = exit_code
        super().__init__(sentence)


def worker_places(profile: Profile, gpus: Sequence[Gpu]) -> list[tuple[str, str]]:
    """(name, GPU's UUID) of each worker: one for each GPU, or one with "" when none is needed.

    DflashqError when the profile needs a GPU and there is none.
    """
    if profile.on_cpu or profile.launch.kind == "external":
        return [("cpu0", "")]
    if not gpus and profile.launch.kind == "sglang":
        raise DflashqError(
            f"no GPU is visible, and profile {profile.name} needs one: look at nvidia-smi and "
            "CUDA_VISIBLE_DEVICES, or choose a CPU profile"
        )
    return [(f"gpu{gpu.index}", gpu.uuid) for gpu in gpus] or [("cpu0", "")]


@contextlib.contextmanager
def single_instance(lock_dir: Path) -> Iterator[None]:
    """Hold the lock that one `dflashq host up` of this host has; EngineError names the holder."""
    lock_dir.mkdir(parents=True, exist_ok=True)
    with FileLock(lock_dir / "host-up.lock") as lock:
        try:
            lock.claim()
        except LockHeldError as exc:
            raise EngineError(
                f"`dflashq host up` already runs on this host (process {exc.holder}); nothing was "
                "started"
            ) from None
        yield


class HostSupervisor:
    """Starts the workers of this host, restarts those that die, drains them together.

    `run` must be called in the main thread: signals come there, and the workers die with it.
    """

    def __init__(
        self,
        settings: Settings,
        profile: str,
        places: Sequence[tuple[str, str]],
        environment: Mapping[str, str],
        echo: Echo,
    ) -> None:
        folder = settings.state_dir / "logs"
        self._workers = [WorkerProcess(name, gpu, profile, folder) for name, gpu in places]
        # CUDA counts the fastest GPU first; an index must mean to it what it means to nvidia-smi.
        self._environment = {**environment, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        self._echo = echo
        self._stops_requested = self._stops = 0
        self._codes: list[int] = []

    def run(self) -> None:
        """Block until SIGTERM or SIGINT came and every worker has drained.

        At a second signal the workers give up what is in flight. WorkersGoneError when all workers
        ended for good without a signal.
        """
        with _wakeups(self._request_stop) as wakeup:
            for worker in self._workers:
                self._start(worker)
            while self._alive():
                self._wait(wakeup)
                while self._stops < self._stops_requested:
                    self._stop()
                self._restart_dead()
        if not self._stops:
            self._raise_if_failed()
        self._echo("every worker has ended")

    def _request_stop(self) -> None:
        """Called from a signal handler, which must not do more than this."""
        self._stops_requested += 1

    def _stop(self) -> None:
        self._stops += 1
        what = "draining" if self._stops == 1 else "giving up what is in flight on"
        self._echo(f"{what} {counted(sum(w.pid is not None for w in self._workers), 'worker')}")
        for worker in self._workers:
            worker.signal(signal.SIGTERM)

    def _alive(self) -> bool:
        """Whether anything runs, or will run again."""
        running = any(worker.pid is not None for worker in self._workers)
        return running or (not self._stops and any(not w.over for w in self._workers))

    def _wait(self, wakeup: int) -> None:
        """Block until a signal comes or the next restart is due."""
        due = [w.restart_at for w in self._workers if w.pid is None and not w.over]
        timeout = None if self._stops or not due else max(0.0, min(due) - time.monotonic())
        if select.select([wakeup], [], [], timeout)[0]:
            os.read(wakeup, 512)

    def _restart_dead(self) -> None:
        now = time.monotonic()
        for worker in self._workers:
            code = worker.ended(now)
            if code is not None:
                self._codes.append(code)
                self._echo_end(worker, code, now)
            due = worker.pid is None and not worker.over and not self._stops
            if due and worker.restart_at <= now:
                self._start(worker)

    def _start(self, worker: WorkerProcess) -> None:
        worker.start(time.monotonic(), self._environment)
        self._echo(f"{worker.name}: started, process {worker.pid}, log {worker.log_file}")

    def _echo_end(self, worker: WorkerProcess, code: int, now: float) -> None:
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        if self._stops:
            self._echo(f"{worker.name}: ended, {how}")
            return
        then = "not started again" if worker.over else f"again in {worker.restart_at - now:.0f} s"
        self._echo(f"{worker.name}: ended, {how}, {then}. Its last words: {worker.last_line()}")

    def _raise_if_failed(self) -> None:
        worst = max(self._codes, key=abs, default=0)
        if worst:
            misconfigured = USAGE in self._codes
            raise WorkersGoneError(
                "every worker has ended and none will be started again: see the lines above and "
                "the logs",
                USAGE if misconfigured else 1,
            )


@contextlib.contextmanager
def _wakeups(on_stop: Callable[[], None]) -> Iterator[int]:
    """A descriptor that is readable after every signal; SIGTERM and SIGINT call `on_stop`."""
    reading, writing = os.pipe()
    for handle in (reading, writing):
        os.set_blocking(handle, False)
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    before = signal.set_wakeup_fd(writing)
    signal.signal(signal.SIGTERM, lambda *_: on_stop())
    signal.signal(signal.SIGINT, lambda *_: on_stop())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        yield reading
    finally:
        signal.set_wakeup_fd(before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.close(reading)
        os.close(writing)
