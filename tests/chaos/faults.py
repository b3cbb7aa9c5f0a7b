"""Injects faults into a fleet: each begins at once and, where it lasts, ends by itself."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import psutil

from tests.chaos.observed_leases import LeaseWatcher
from tests.chaos.twins import Twins
from tests.support.fault_fleet import FaultFleet, engine_of, engine_took_faults
from tests.support.tcp_proxy import TcpProxy
from tests.support.wait import WAIT_S

PAUSE_S = (0.8, 2.6)  # between two faults
BACK_S = (1.0, 3.0)  # until a dead worker is started again
TWIN_POLL_S = 0.2
DEAD_PORT = 1  # nobody listens there
EVERYBODY = "everybody"
# What an engine answers to every request; 429 and 503 come with a Retry-After.
ERROR_ANSWERS: tuple[dict[str, object], ...] = (
    {"every_status": 500},
    {"every_status": 429, "retry_after_s": 1.0},
    {"every_status": 503, "retry_after_s": 1.0},
)
NO_ERRORS: dict[str, object] = {"every_status": 0, "retry_after_s": 0.0}


@dataclass(frozen=True, slots=True)
class FaultKind:
    """One kind of fault: how likely it is, whether it counts as a kill, and whom it hits.

    `act` gets the name of a worker, or EVERYBODY where the fault is `fleet_wide`. No fleet-wide
    fault is at work while a `quiet` one begins.
    """

    name: str
    weight: float
    act: Callable[[str], None]
    kill: bool = False
    fleet_wide: bool = False
    quiet: bool = False


class FaultInjector:
    """Does harm to a fleet, one seeded fault after the other, as often as `tick` is called.

    Not thread-safe. `faults`, `exits` and `kills` count what was done, and how workers ended.
    """

    def __init__(
        self,
        fault_fleet: FaultFleet,
        names: list[str],
        watcher: LeaseWatcher,
        twins: Twins,
        *,
        seed: int,
        without: frozenset[str] = frozenset(),
    ) -> None:
        self._fault_fleet, self._names, self._watcher = fault_fleet, names, watcher
        self._twins = twins
        self._rng = random.Random(seed)
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._busy: set[str] = set()
        self._away: set[str] = set()
        self._next = time.monotonic() + 1.0
        self.faults: Counter[str] = Counter()
        self.exits: Counter[int] = Counter()
        self.kills = 0
        self.refusing = False  # Redis takes no write now, not even one of this process
        self._kinds = [kind for kind in self._catalogue() if kind.name not in without]

    def _catalogue(self) -> list[FaultKind]:
        return [
            FaultKind("kill -9 worker", 5, self._kill_worker, kill=True),
            FaultKind("kill -9 engine", 6, self._kill_engine, kill=True),
            FaultKind("kill -9 both", 3, self._kill_both, kill=True),
            FaultKind("frozen past its lease", 2, self._freeze),
            FaultKind("SIGTERM", 1.5, self._terminate),
            FaultKind("one worker cut off", 2, self._cut_one),
            FaultKind("one worker without Redis", 1, self._cut_redis_of_one),
            FaultKind("answers of Redis lost", 1, self._lose_redis),
            FaultKind("answers of S3 lost", 1, self._lose_s3),
            FaultKind("Redis killed and restarted", 0.7, self._restart_redis, fleet_wide=True),
            FaultKind("Redis out of reach", 0.7, self._cut_redis, fleet_wide=True),
            FaultKind("S3 answers 503", 0.7, self._s3_503, fleet_wide=True),
            FaultKind("S3 out of reach", 0.7, self._cut_s3, fleet_wide=True),
            FaultKind("Redis refuses writes", 1, self._refuse_writes, fleet_wide=True),
            FaultKind("engine only errs", 2, self._answer_errors),
            FaultKind("a twin", 1, self._twin, quiet=True),
            FaultKind("no descriptors left", 1.5, self._starve),
        ]

    def tick(self, *, harm: bool = True) -> None:
        """End the faults that are due, restart dead workers, inject the next fault when it is time.

        Without `harm` no new fault begins.
        """
        now = time.monotonic()
        while self._due and self._due[0][0] <= now:
            heapq.heappop(self._due)[2]()
        self._restart_dead()
        if harm and now >= self._next:
            self._next = now + self._rng.uniform(*PAUSE_S)
            self._inject()

    def end_all(self) -> None:
        """End every fault at once; workers that are down come back with the next ticks."""
        while self._due:
            heapq.heappop(self._due)[2]()
        for proxies in self._fault_fleet.proxies.values():
            proxies.pass_on()

    def _inject(self) -> None:
        kind = self._rng.choices(self._kinds, [k.weight for k in self._kinds])[0]
        if kind.fleet_wide:
            if EVERYBODY in self._busy:
                return
            kind.act(EVERYBODY)
        else:
            if kind.quiet and EVERYBODY in self._busy:
                return
            free = [n for n in self._names if n not in self._busy | self._away]
            targets = [n for n in free if engine_of(self._fault_fleet.named[n])]
            if len(targets) < 2:  # one worker at least is left to go on
                return
            # Now and then a fault hits a worker that still boots.
            targets += [n for n in free if n not in targets and self._rng.random() < 0.1]
            kind.act(self._rng.choice(targets))
        self.faults[kind.name] += 1
        self.kills += kind.kill

    def _schedule(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._due, (time.monotonic() + seconds, next(self._order), act))

    def _lasting(self, name: str, seconds: float, end: Callable[[], None]) -> None:
        """Nothing else happens to `name` until the fault ends."""
        self._busy.add(name)

        def finish() -> None:
            self._busy.discard(name)
            end()

        self._schedule(seconds, finish)

    def _restart_dead(self) -> None:
        for name in self._names:
            worker = self._fault_fleet.named[name]
            code = worker.process.poll()
            if code is None or name in self._away:
                continue
            self.exits[code] += 1
            self._away.add(name)
            self._schedule(self._rng.uniform(*BACK_S), lambda n=name: self._launch(n))  # type: ignore[misc]

    def _launch(self, name: str) -> None:
        self._fault_fleet.launch(name)
        self._away.discard(name)

    # --- kills

    def _kill_worker(self, name: str) -> None:
        worker = self._fault_fleet.named[name]
        self._watcher.record_loss(worker.name)
        worker.kill()

    def _kill_engine(self, name: str) -> None:
        engine = engine_of(self._fault_fleet.named[name])
        if engine is not None:
            engine.kill()

    def _kill_both(self, name: str) -> None:
        worker = self._fault_fleet.named[name]
        self._watcher.record_loss(worker.name)
        for process in reversed(worker.family()):
            with contextlib.suppress(Exception):  # it may be gone already
                process.kill()
        worker.process.wait(WAIT_S)

    # --- stops

    def _freeze(self, name: str) -> None:
        worker = self._fault_fleet.named[name]
        worker.signal(signal.SIGSTOP)
        self._watcher.record_loss(worker.name)
        seconds = self._fault_fleet.settings.lease_ttl_s * self._rng.uniform(1.3, 2.5)
        self._lasting(name, seconds, lambda: worker.signal(signal.SIGCONT))

    def _terminate(self, name: str) -> None:
        worker = self._fault_fleet.named[name]
        worker.signal(signal.SIGTERM)
        self._lasting(name, 5.0, lambda: None)

    # --- networks

    def _redis_of(self, name: str) -> list[TcpProxy]:
        names = self._names if name == EVERYBODY else [name]
        return [self._fault_fleet.proxies[n].redis for n in names]

    def _s3_of(self, name: str) -> list[TcpProxy]:
        names = self._names if name == EVERYBODY else [name]
        return [self._fault_fleet.proxies[n].s3 for n in names]

    def _disturb(
        self,
        name: str,
        proxies: list[TcpProxy],
        disturb: Callable[[TcpProxy], None],
        seconds: float,
    ) -> None:
        for proxy in proxies:
            disturb(proxy)

        def end() -> None:
            for proxy in proxies:
                proxy.pass_on()

        self._lasting(name, seconds, end)

    def _cut_one(self, name: str) -> None:
        proxies = self._redis_of(name) + self._s3_of(name)
        self._disturb(name, proxies, TcpProxy.cut, self._rng.uniform(1, 8))

    def _cut_redis_of_one(self, name: str) -> None:
        self._disturb(name, self._redis_of(name), TcpProxy.cut, self._rng.uniform(1, 8))

    def _lose_redis(self, name: str) -> None:
        self._disturb(name, self._redis_of(name), TcpProxy.lose_replies, self._rng.uniform(0.3, 2))

    def _lose_s3(self, name: str) -> None:
        self._disturb(name, self._s3_of(name), TcpProxy.lose_replies, self._rng.uniform(0.3, 3))

    def _cut_redis(self, name: str) -> None:
        self._disturb(name, self._redis_of(name), TcpProxy.cut, self._rng.uniform(1, 6))

    def _cut_s3(self, name: str) -> None:
        self._disturb(name, self._s3_of(name), TcpProxy.cut, self._rng.uniform(2, 10))

    def _s3_503(self, name: str) -> None:
        def refuse(proxy: TcpProxy) -> None:
            proxy.answer(503, "SlowDown")

        self._disturb(name, self._s3_of(name), refuse, self._rng.uniform(2, 10))

    def _restart_redis(self, _name: str) -> None:
        self._fault_fleet.redis.kill()
        time.sleep(self._rng.uniform(0.1, 1.0))  # the outage itself
        self._fault_fleet.redis.start()

    def _refuse_writes(self, _name: str) -> None:
        """Redis refuses writes as one that lacks replicas, or that a failover made a replica."""
        with self._fault_fleet.redis.client() as client:
            if self._rng.random() < 0.5:
                client.config_set("min-replicas-to-write", 1)
            else:
                client.replicaof("127.0.0.1", DEAD_PORT)
        self.refusing = True
        self._lasting(EVERYBODY, self._rng.uniform(1, 6), self._take_writes)

    def _take_writes(self) -> None:
        with self._fault_fleet.redis.client() as client:
            client.config_set("min-replicas-to-write", 0)
            client.replicaof("NO", "ONE")
        self.refusing = False

    # --- engines, twins, limits

    def _answer_errors(self, name: str) -> None:
        engine = engine_of(self._fault_fleet.named[name])
        if engine is not None and engine_took_faults(engine, self._rng.choice(ERROR_ANSWERS)):
            self._lasting(name, self._rng.uniform(2, 8), partial(self._answer_again, engine))

    def _answer_again(self, engine: psutil.Process) -> None:
        engine_took_faults(engine, NO_ERRORS)  # one that has died comes back without faults

    def _twin(self, name: str) -> None:
        """Start one to three twins of a worker, one after the other, as a supervisor would."""
        self._busy |= {name, EVERYBODY}
        self._start_twin(name, self._rng.randint(1, 3))

    def _start_twin(self, name: str, left: int) -> None:
        ended = self._twins.start(name)

        def check() -> None:
            if not ended():
                self._schedule(TWIN_POLL_S, check)
            elif left > 1:
                self._start_twin(name, left - 1)
            else:
                self._busy -= {name, EVERYBODY}

        self._schedule(TWIN_POLL_S, check)

    def _starve(self, name: str) -> None:
        """Lower the limit of a worker to its open files and two more at most."""
        worker = self._fault_fleet.named[name]
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(worker.process.pid)
            soft, hard = process.rlimit(psutil.RLIMIT_NOFILE)
            limit = process.num_fds() + self._rng.randint(0, 2)
            process.rlimit(psutil.RLIMIT_NOFILE, (limit, hard))

            def restore() -> None:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.rlimit(psutil.RLIMIT_NOFILE, (soft, hard))

            self._lasting(name, self._rng.uniform(2, 6), restore)
