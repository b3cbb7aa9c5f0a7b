"""Workers behind proxies, with a Redis of their own: what the fault tests do harm to."""

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
from dflashq.embedded.s3 import EmbeddedS3
from dflashq.ledger import Lease
from dflashq.operations.runs import control
from tests.support.engine_emulator import prompt_hash
from tests.support.engine_emulator.launch import MODULE, is_emulator
from tests.support.fleet import FleetHarness, WorkerHandle, wait_until
from tests.support.servers import settings_for
from tests.support.tcp_proxy import TcpProxy
from tests.support.wait import WAIT_S


def engine_events(stats: Path) -> Iterator[dict[str, Any]]:
    """What the emulated engines wrote down about requests of ours; a torn last line is left out."""
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


def set_engine_faults(port: int, faults: dict[str, object]) -> None:
    """Change some faults of the emulated engine that listens on `port`. Blocks for its answer."""
    url = f"http://127.0.0.1:{port}/faults"
    requests.post(url, json=faults, timeout=WAIT_S).raise_for_status()


def engine_took_faults(engine: psutil.Process, faults: dict[str, object]) -> bool:
    """Set the faults of an engine; False while it does not listen yet. A dead one counts as set."""
    try:
        set_engine_faults(engine_port(engine), faults)
    except requests.ConnectionError:
        return not engine.is_running()
    except (psutil.NoSuchProcess, ValueError):
        return True
    return True


def processes(folder: Path) -> list[psutil.Process]:
    """Every living worker and engine whose command names a file of `folder`."""
    matching = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            line = " ".join(process.cmdline())
            if str(folder) in line and ("celery" in line or MODULE in line):
                matching.append(process)
    return matching


USUAL: dict[str, object] = {"slow": 1.0, "http_400": 0.0, "truncated": 0.0, "hang": False}


def put_of(settings: Settings, run: str, batch: str = "") -> bytes:
    """The first bytes of the request that uploads completions of a run, or of one batch of it.

    An attempt begins with a HEAD of the same object, which these bytes do not match.
    """
    key = keys.completions_object(run, batch) if batch else keys.completions_prefix(run)
    return f"PUT /{settings.s3_bucket}/{settings.s3_prefix}{key}".encode()


class ProxyPair:
    """The two connections of one worker, each through a proxy of its own."""

    def __init__(self, settings: Settings) -> None:
        redis, s3 = urlsplit(settings.redis_url), urlsplit(settings.s3_endpoint_url or "")
        self.redis = TcpProxy(redis.hostname or "", redis.port or 0)
        self.s3 = TcpProxy(s3.hostname or "", s3.port or 0)
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
    """A fleet whose workers have names, each with proxies of its own, and can be started again."""

    def __init__(
        self, settings: Settings, profile: Path, folder: Path, redis: EmbeddedRedis, stats: Path
    ) -> None:
        super().__init__(settings, profile, folder)
        self.redis, self.stats = redis, stats
        self.proxies: dict[str, ProxyPair] = {}
        self.named: dict[str, WorkerHandle] = {}
        self._runs: list[str] = []
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for worker in self.workers:  # one that is stopped hears no SIGTERM
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.process.pid, signal.SIGCONT)
        for proxies in self.proxies.values():
            proxies.pass_on()
        super().__exit__(*exc)
        self._stack.close()
        for process in processes(self.folder):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def bring_up(self, *names: str) -> list[WorkerHandle]:
        """Start those of these workers that do not live; block until all are ready."""
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
        if name not in self.proxies:
            self.proxies[name] = self._stack.enter_context(ProxyPair(self.settings))
        dead = self.named.get(name)
        if dead is not None:
            self.workers.remove(dead)
        worker = WorkerHandle(
            self.proxies[name].settings, self.profile_path, name, self.folder / f"{name}.log"
        )
        self.workers.append(worker)
        self.named[name] = worker
        return worker

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Freeze the workers: what the block does is complete before they see any of it."""
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
        """Switch the faults off; cancel the runs that a failed test left behind."""
        for proxies in self.proxies.values():
            proxies.pass_on()
        for run in self._runs:
            if self.ledger.state(run) != "unknown" and not self.ledger.status(run).finished:
                control.cancel(self.ledger, self.blobs, run, "its test is over")
                wait_until(partial(self._let_go, run), f"{run} is let go")
        self._runs.clear()
        self.set_faults()

    def _let_go(self, run: str) -> bool:
        return not self.ledger.status(run).leased

    def set_faults(self, **faults: object) -> None:
        """Change the engines' faults from now on; without arguments, to those of the profile."""
        for worker in self.named.values():
            engine = engine_of(worker) if worker.process.poll() is None else None
            if engine is not None:
                wait_until(
                    partial(engine_took_faults, engine, faults or USUAL), f"{engine} listens"
                )

    @contextlib.contextmanager
    def slowly(self) -> Iterator[None]:
        """Slow the engines down, so that batches are still at work when the block has run.

        Without it a test on a busy machine could lose the race against its fleet.
        """
        engines = [engine for w in self.named.values() if (engine := engine_of(w)) is not None]
        ports = [engine_port(engine) for engine in engines]
        for port in ports:
            set_engine_faults(port, {"slow": 8.0})
        yield
        for port in ports:
            with contextlib.suppress(requests.ConnectionError):
                set_engine_faults(port, USUAL)  # unless the block killed it

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

    def request_counts(self, since: float = 0.0) -> Counter[str]:
        """How often the engines were sent each prompt, by hash, after the time `since`."""
        rows = engine_events(self.stats)
        return Counter(r["prompt"] for r in rows if r["event"] == "received" and r["t"] > since)

    def holder(self, run: str) -> WorkerHandle:
        """A worker that holds a lease of this run now. Blocks until there is one."""
        holders: list[WorkerHandle] = []

        def held() -> bool:
            holders.extend(
                w
                for w in self.named.values()
                for batch in self.ledger.status(run).leased
                if batch.worker == w.name
            )
            return bool(holders)

        wait_until(held, f"a worker holds a batch of {run}")
        return holders[0]

    def held_by(self, run: str, worker: WorkerHandle) -> set[str]:
        """The batches of a run that this worker holds."""
        return {b.name for b in self.ledger.status(run).leased if b.worker == worker.name}


def fault_fleet_settings(
    redis: EmbeddedRedis, s3: EmbeddedS3, folder: Path, **values: Any
) -> Settings:
    """Short times and an S3 prefix of this fleet alone; `values` are other settings."""
    short: dict[str, Any] = {
        "s3_prefix": f"faults-{secrets.token_hex(6)}/",
        "lease_ttl_s": 3.0,
        "sweep_s": 0.5,
        "attempts": 3,
        "drain_grace_s": 15.0,
        "engine_restarts": 100,
        "lock_dir": folder / "locks",
        "state_dir": folder / "state",
    }
    return settings_for(redis, s3, **(short | values))
