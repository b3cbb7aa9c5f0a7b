"""The faults of the chaos: each begins at once and, where it lasts, ends by itself."""

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

from tests.chaos.observed_leases import Watch
from tests.chaos.twins import Twins
from tests.support.fault_fleet import FaultFleet, dialled, engine_of
from tests.support.tcp_proxy import Proxy
from tests.support.wait import WAIT_S

PAUSE_S = (0.8, 2.6)  # between two faults
BACK_S = (1.0, 3.0)  # until a dead worker is started again
TWIN_LOOK_S = 0.2  # between two looks whether a twin has ended
DEAD_PORT = 1  # nobody listens there
# Everything that an engine may answer when it only errs; with 429 it says when to come again.
ERRS: tuple[dict[str, object], ...] = (
    {"every_status": 500},
    {"every_status": 429, "retry_after_s": 1.0},
    {"every_status": 503, "retry_after_s": 1.0},
)
WELL: dict[str, object] = {"every_status": 0, "retry_after_s": 0.0}


@dataclass(frozen=True, slots=True)
class Kind:
    """How likely a fault is, whether it is a kill, and what it does to a worker or to all."""

    name: str
    weight: float
    act: Callable[[str], None]
    kill: bool = False
    everybody: bool = False
    quiet: bool = False  # nothing happens to everybody meanwhile


class Chaos:
    """Does harm to an arena, one seeded fault after the other. Not thread-safe: call `tick`."""

    def __init__(
        self,
        fault_fleet: FaultFleet,
        names: list[str],
        watch: Watch,
        twins: Twins,
        *,
        seed: int,
        without: frozenset[str] = frozenset(),
    ) -> None:
        self._fault_fleet, self._names, self._watch = fault_fleet, names, watch
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
        self.refusing = False  # Redis takes no write now, not even one of the chaos
        self._kinds = [kind for kind in self._catalogue() if kind.name not in without]

    def _catalogue(self) -> list[Kind]:
        return [
            Kind("kill -9 worker", 5, self._kill_worker, kill=True),
            Kind("kill -9 engine", 6, self._kill_engine, kill=True),
            Kind("kill -9 both", 3, self._kill_both, kill=True),
            Kind("frozen past its lease", 2, self._freeze),
            Kind("SIGTERM", 1.5, self._terminate),
            Kind("one worker cut off", 2, self._cut_one),
            Kind("one worker without Redis", 1, self._cut_redis_of_one),
            Kind("answers of Redis lost", 1, self._lose_redis),
            Kind("answers of S3 lost", 1, self._lose_s3),
            Kind("Redis killed and restarted", 0.7, self._restart_redis, everybody=True),
            Kind("Redis out of reach", 0.7, self._cut_redis, everybody=True),
            Kind("S3 answers 503", 0.7, self._s3_503, everybody=True),
            Kind("S3 out of reach", 0.7, self._cut_s3, everybody=True),
            Kind("Redis refuses writes", 1, self._refuse_writes, everybody=True),
            Kind("engine only errs", 2, self._err),
            Kind("a twin", 1, self._twin, quiet=True),
            Kind("no descriptors left", 1.5, self._starve),
        ]

    def tick(self, *, harm: bool = True) -> None:
        """End what is over, start workers that are down, and do the next harm when it is time."""
        now = time.monotonic()
        while self._due and self._due[0][0] <= now:
            heapq.heappop(self._due)[2]()
        self._bring_back()
        if harm and now >= self._next:
            self._next = now + self._rng.uniform(*PAUSE_S)
            self._harm()

    def calm(self) -> None:
        """End every fault at once; workers that are down come back with the next ticks."""
        while self._due:
            heapq.heappop(self._due)[2]()
        for lines in self._fault_fleet.lines.values():
            lines.pass_on()

    def _harm(self) -> None:
        kind = self._rng.choices(self._kinds, [k.weight for k in self._kinds])[0]
        if kind.everybody:
            if self._busy & {"everybody"}:
                return
            kind.act("everybody")
        else:
            if kind.quiet and "everybody" in self._busy:
                return
            free = [n for n in self._names if n not in self._busy | self._away]
            fit = [n for n in free if engine_of(self._fault_fleet.named[n])]
            # One that boots is hit too, now and then; one at least is left to go on.
            if len(fit) < 2:
                return
            fit += [n for n in free if n not in fit and self._rng.random() < 0.1]
            kind.act(self._rng.choice(fit))
        self.faults[kind.name] += 1
        self.kills += kind.kill

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._due, (time.monotonic() + seconds, next(self._order), act))

    def _lasting(self, who: str, seconds: float, end: Callable[[], None]) -> None:
        """Nothing else happens to `who` until the fault ends."""
        self._busy.add(who)

        def over() -> None:
            self._busy.discard(who)
            end()

        self._later(seconds, over)

    def _bring_back(self) -> None:
        for name in self._names:
            worker = self._fault_fleet.named[name]
            code = worker.process.poll()
            if code is None or name in self._away:
                continue
            self.exits[code] += 1
            self._away.add(name)
            self._later(self._rng.uniform(*BACK_S), lambda n=name: self._launch(n))  # type: ignore[misc]

    def _launch(self, name: str) -> None:
        self._fault_fleet.launch(name)
        self._away.discard(name)

    # --- kills

    def _kill_worker(self, name: str) -> None:
        worker = self._fault_fleet.named[name]
        self._watch.lost(worker.name)
        worker.kill()

    def _kill_engine(self, name: str) -> None:
        engine = engine_of(self._fault_fleet.named[name])
        if engine is not None:
            engine.kill()

    def _kill_both(self, name: str) -> None:
        worker = self._fault_fleet.named[name]
        self._watch.lost(worker.name)
        for process in reversed(worker.family()):
            with contextlib.suppress(Exception):  # it may be gone already
                process.kill()
        worker.process.wait(WAIT_S)

    # --- stops

    def _freeze(self, name: str) -> None:
        worker = self._fault_fleet.named[name]
        worker.signal(signal.SIGSTOP)
        self._watch.lost(worker.name)
        seconds = self._fault_fleet.settings.lease_ttl_s * self._rng.uniform(1.3, 2.5)
        self._lasting(name, seconds, lambda: worker.signal(signal.SIGCONT))

    def _terminate(self, name: str) -> None:
        worker = self._fault_fleet.named[name]
        worker.signal(signal.SIGTERM)
        self._lasting(name, 5.0, lambda: None)

    # --- networks

    def _redis_of(self, name: str) -> list[Proxy]:
        lines = self._fault_fleet.lines
        return [lines[n].redis for n in (self._names if name == "everybody" else [name])]

    def _s3_of(self, name: str) -> list[Proxy]:
        lines = self._fault_fleet.lines
        return [lines[n].s3 for n in (self._names if name == "everybody" else [name])]

    def _for_a_while(
        self, who: str, proxies: list[Proxy], harm: Callable[[Proxy], None], seconds: float
    ) -> None:
        for proxy in proxies:
            harm(proxy)

        def end() -> None:
            for proxy in proxies:
                proxy.pass_on()

        self._lasting(who, seconds, end)

    def _cut_one(self, name: str) -> None:
        proxies = self._redis_of(name) + self._s3_of(name)
        self._for_a_while(name, proxies, Proxy.cut, self._rng.uniform(1, 8))

    def _cut_redis_of_one(self, name: str) -> None:
        self._for_a_while(name, self._redis_of(name), Proxy.cut, self._rng.uniform(1, 8))

    def _lose_redis(self, name: str) -> None:
        self._for_a_while(name, self._redis_of(name), Proxy.lose_replies, self._rng.uniform(0.3, 2))

    def _lose_s3(self, name: str) -> None:
        self._for_a_while(name, self._s3_of(name), Proxy.lose_replies, self._rng.uniform(0.3, 3))

    def _cut_redis(self, who: str) -> None:
        self._for_a_while(who, self._redis_of(who), Proxy.cut, self._rng.uniform(1, 6))

    def _cut_s3(self, who: str) -> None:
        self._for_a_while(who, self._s3_of(who), Proxy.cut, self._rng.uniform(2, 10))

    def _s3_503(self, who: str) -> None:
        def refuse(proxy: Proxy) -> None:
            proxy.answer(503, "SlowDown")

        self._for_a_while(who, self._s3_of(who), refuse, self._rng.uniform(2, 10))

    def _restart_redis(self, _who: str) -> None:
        self._fault_fleet.redis.kill()
        time.sleep(self._rng.uniform(0.1, 1.0))  # the outage itself
        self._fault_fleet.redis.start()

    def _refuse_writes(self, _who: str) -> None:
        """As a Redis without replicas, or one that a failover made a replica, answers writes."""
        with self._fault_fleet.redis.client() as client:
            if self._rng.random() < 0.5:
                client.config_set("min-replicas-to-write", 1)
            else:
                client.replicaof("127.0.0.1", DEAD_PORT)
        self.refusing = True
        self._lasting("everybody", self._rng.uniform(1, 6), self._take_writes)

    def _take_writes(self) -> None:
        with self._fault_fleet.redis.client() as client:
            client.config_set("min-replicas-to-write", 0)
            client.replicaof("NO", "ONE")
        self.refusing = False

    # --- engines, twins, limits

    def _err(self, name: str) -> None:
        engine = engine_of(self._fault_fleet.named[name])
        if engine is not None and dialled(engine, self._rng.choice(ERRS)):
            self._lasting(name, self._rng.uniform(2, 8), partial(self._make_well, engine))

    def _make_well(self, engine: psutil.Process) -> None:
        dialled(engine, WELL)  # one that has died comes back without faults

    def _twin(self, name: str) -> None:
        """One to three twins, one after the other, as a supervisor would start them."""
        self._busy |= {name, "everybody"}
        self._start_twin(name, self._rng.randint(1, 3))

    def _start_twin(self, name: str, left: int) -> None:
        ended = self._twins.start(name)

        def look() -> None:
            if not ended():
                self._later(TWIN_LOOK_S, look)
            elif left > 1:
                self._start_twin(name, left - 1)
            else:
                self._busy -= {name, "everybody"}

        self._later(TWIN_LOOK_S, look)

    def _starve(self, name: str) -> None:
        """Leave a worker a descriptor or two, or none."""
        worker = self._fault_fleet.named[name]
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(worker.process.pid)
            soft, hard = process.rlimit(psutil.RLIMIT_NOFILE)
            few = process.num_fds() + self._rng.randint(0, 2)
            process.rlimit(psutil.RLIMIT_NOFILE, (few, hard))

            def restore() -> None:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.rlimit(psutil.RLIMIT_NOFILE, (soft, hard))

            self._lasting(name, self._rng.uniform(2, 6), restore)
