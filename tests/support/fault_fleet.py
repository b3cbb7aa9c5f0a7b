"""Two workers behind proxies of ours, with a Redis of their own: the place of the fault tests."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import psutil
import requests

from dflashq.config import Settings
from dflashq.core import keys
from dflashq.core.model import RunRecord
from dflashq.embedded.redis import EmbeddedRedis
from dflashq.ledger import Lease
from dflashq.operations.runs import control
from tests.support.engine_emulator import prompt_hash
from tests.support.engine_emulator.launch import MODULE, is_emulator
from tests.support.fleet import FleetHarness, WorkerHandle, wait_until
from tests.support.tcp_proxy import Proxy
from tests.support.wait import WAIT_S


def lines_of(stats: Path) -> Iterator[dict[str, Any]]:
    """The engines' events on prompts of ours; a torn last line is left out."""
    for line in stats.read_bytes().split(b"\n")[:-1] if stats.exists() else ():
        row = json.loads(line)
        if row["rid"].startswith("dfq-"):
            yield row


def engine_of(worker: WorkerHandle) -> psutil.Process | None:
    """The emulated engine below a worker, if one lives."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(worker.process.pid).children(recursive=True):
            if is_emulator(child) and child.status() != "zombie":
                return child
    return None


def engine_port(engine: psutil.Process) -> int:
    """The port that an emulated engine listens on."""
    line = engine.cmdline()
    return int(line[line.index("--port") + 1])


def dial(port: int, faults: dict[str, object]) -> None:
    """Change some faults of one engine from now on."""
    url = f"http://127.0.0.1:{port}/faults"
    requests.post(url, json=faults, timeout=WAIT_S).raise_for_status()


def dialled(engine: psutil.Process, faults: dict[str, object]) -> bool:
    """`dial`, or False for one that does not listen yet; one that is dead needs no dialling."""
    try:
        dial(engine_port(engine), faults)
    except requests.ConnectionError:
        return not engine.is_running()
    except (psutil.NoSuchProcess, ValueError):
        return True
    return True


def processes(folder: Path) -> list[psutil.Process]:
    """Every living worker and engine that names a file of `folder`: whoever started it."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            line = " ".join(process.cmdline())
            if str(folder) in line and ("celery" in line or MODULE in line):
                found.append(process)
    return found


USUAL: dict[str, object] = {"slow": 1.0, "http_400": 0.0, "truncated": 0.0, "hang": False}


def put_of(settings: Settings, run: str, batch: str = "") -> bytes:
    """How the request begins that uploads a run's completions, or those of one batch.

    Not the HEAD of the same object, with which an attempt begins.
    """
    key = keys.completions_object(run, batch) if batch else keys.completions_prefix(run)
    return f"PUT /{settings.s3_bucket}/{settings.s3_prefix}{key}".encode()


class ProxyPair:
    """The two connections of one worker, each through a proxy of its own."""

    def __init__(self, settings: Settings) -> None:
        redis, s3 = urlsplit(settings.redis_url), urlsplit(settings.s3_endpoint_url or "")
        self.redis = Proxy(redis.hostname or "", redis.port or 0)
        self.s3 = Proxy(s3.hostname or "", s3.port or 0)
        self._settings, self._database = settings, redis.path

    def __enter__(self) -> Self:
        self.redis.__enter__()
        self.s3.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.s3.__exit__(kind, exc, tb)
        self.redis.__exit__(kind, exc, tb)

    @property
    def settings(self) -> Settings:
        """Settings that lead a worker through the proxies."""
        return self._settings.model_copy(
            update={
                "redis_url": f"redis://127.0.0.1:{self.redis.port}{self._database}",
                "s3_endpoint_url": f"http://127.0.0.1:{self.s3.port}",
            }
        )

    def pass_on(self) -> None:
        self.redis.pass_on()
        self.s3.pass_on()


class FaultFleet(FleetHarness):
    """A fleet whose workers have names, lines of their own, and come back when they are dead."""

    def __init__(
        self, settings: Settings, profile: Path, folder: Path, redis: EmbeddedRedis, stats: Path
    ) -> None:
        super().__init__(settings, profile, folder)
        self.redis, self.stats = redis, stats
        self.lines: dict[str, ProxyPair] = {}
        self.named: dict[str, WorkerHandle] = {}
        self._runs: list[str] = []
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for worker in self.workers:  # one that is stopped hears no SIGTERM
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.process.pid, signal.SIGCONT)
        for lines in self.lines.values():
            lines.pass_on()
        super().__exit__(*exc)
        self._stack.close()
        for process in processes(self.folder):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def bring_up(self, *names: str) -> list[WorkerHandle]:
        """These workers, started where they do not live, all ready."""
        for name in names:
            worker = self.named.get(name)
            if worker is None or worker.process.poll() is not None:
                self.launch(name)
        chosen = [self.named[name] for name in names]
        for worker in chosen:
            worker.wait_ready()
        return chosen

    def launch(self, name: str) -> WorkerHandle:
        """Start a worker of this name without waiting for it."""
        if name not in self.lines:
            self.lines[name] = self._stack.enter_context(ProxyPair(self.settings))
        dead = self.named.get(name)
        if dead is not None:
            self.workers.remove(dead)
        worker = WorkerHandle(
            self.lines[name].settings, self.profile_path, name, self.folder / f"{name}.log"
        )
        self.workers.append(worker)
        self.named[name] = worker
        return worker

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Freeze the workers, so that what the block does comes before they see any of it."""
        for worker in self.named.values():
            worker.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            for worker in self.named.values():
                worker.signal(signal.SIGCONT)

    def begin(self, run: str, prompts: int, **options: Any) -> RunRecord:
        """Enqueue a run whose prompts no other run has."""
        path = self.folder / f"{run}.jsonl"
        rows = [
            {"id": f"p{n}", "messages": [{"role": "user", "content": f"{run}: what is {n}?"}]}
            for n in range(prompts)
        ]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return self.begin_from(run, path, **options)

    def begin_from(self, run: str, path: Path, **options: Any) -> RunRecord:
        """Enqueue a run of a prompt file."""
        self._runs.append(run)
        return self.enqueue(run, path, **options)

    def clear(self) -> None:
        """Faults off, runs that a failed test left behind cancelled."""
        for lines in self.lines.values():
            lines.pass_on()
        for run in self._runs:
            if self.ledger.state(run) != "unknown" and not self.ledger.status(run).finished:
                control.cancel(self.ledger, self.blobs, run, "its test is over")
                wait_until(partial(self._let_go, run), f"{run} is let go")
        self._runs.clear()
        self.set_faults()

    def _let_go(self, run: str) -> bool:
        return not self.ledger.status(run).leased

    def set_faults(self, **faults: object) -> None:
        """Change the engines' faults from now on; none given: those of the profile."""
        for worker in self.named.values():
            engine = engine_of(worker) if worker.process.poll() is None else None
            if engine is not None:
                wait_until(partial(dialled, engine, faults or USUAL), f"{engine} listens")

    @contextlib.contextmanager
    def slowly(self) -> Iterator[None]:
        """Engines at a fraction of their speed, so that the block comes while batches are at work.

        However slow this machine is: a test must not lose a race against the fleet.
        """
        engines = [engine for w in self.named.values() if (engine := engine_of(w)) is not None]
        ports = [engine_port(engine) for engine in engines]
        for port in ports:
            dial(port, {"slow": 8.0})
        yield
        for port in ports:
            with contextlib.suppress(requests.ConnectionError):
                dial(port, USUAL)  # unless the block killed it

    def kept(self, run: str) -> dict[str, set[str]]:
        """Hashes of the prompts with kept generations, by unfinished batch."""
        names = [b.name for b in self.ledger.batch_states(run) if b.state != "done"]
        return {
            name: {
                prompt_hash(generation.prompt_ids)
                for generation in self.ledger.kept(Lease(run, name, "", "", 0)).generations.values()
            }
            for name in names
        }

    def wait_kept(self, run: str, count: int) -> set[str]:
        """Block until so many generations are kept; the hashes of their prompts."""
        held: set[str] = set()

        def enough() -> bool:
            held.clear()
            held.update(*self.kept(run).values())
            return len(held) >= count

        wait_until(enough, f"{count} generations of {run} are kept")
        return held

    def asked(self, since: float = 0.0) -> Counter[str]:
        """How often each prompt was asked of the engines, by hash, since a time."""
        rows = lines_of(self.stats)
        return Counter(r["prompt"] for r in rows if r["event"] == "received" and r["t"] > since)

    def holder(self, run: str) -> WorkerHandle:
        """A worker that holds a lease of this run now."""
        found: list[WorkerHandle] = []

        def held() -> bool:
            found.extend(
                w
                for w in self.named.values()
                for batch in self.ledger.status(run).leased
                if batch.worker == w.name
            )
            return bool(found)

        wait_until(held, f"a worker holds a batch of {run}")
        return found[0]

    def held_by(self, run: str, worker: WorkerHandle) -> set[str]:
        """The batches of a run that this worker holds."""
        return {b.name for b in self.ledger.status(run).leased if b.worker == worker.name}


def fault_fleet_settings(
    settings: Settings, redis: EmbeddedRedis, folder: Path, **more: Any
) -> Settings:
    """Short times; a Redis and an S3 prefix of the arena's own."""
    short: dict[str, Any] = {
        "redis_url": redis.url,
        "s3_prefix": f"arena-{secrets.token_hex(6)}/",
        "lease_ttl_s": 3.0,
        "sweep_s": 0.5,
        "attempts": 3,
        "drain_grace_s": 15.0,
        "engine_restarts": 100,
        "lock_dir": folder / "locks",
        "state_dir": folder / "state",
    }
    return settings.model_copy(update=short | more)
