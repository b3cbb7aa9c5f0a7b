"""Fast settings; and one fleet for all fault tests, since a worker takes seconds to start."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dflashq.config import Settings
from dflashq.embedded.redis import EmbeddedRedis
from dflashq.embedded.s3 import EmbeddedS3
from dflashq.engine.chat_renderer import ChatRenderer
from dflashq.system.ports import free_port
from tests.conftest import REDIS_PASSWORD
from tests.support.engine_emulator import emulated_profile
from tests.support.fault_fleet import FaultFleet, fault_fleet_settings
from tests.support.fleet import FleetHarness
from tests.support.wait import WAIT_S

POISON = " poison poison"
FleetFactory = Callable[..., FleetHarness]


@pytest.fixture
def fast(settings: Settings) -> Settings:
    """A fleet of its own for one test, which notices within seconds what takes minutes in life."""
    return settings.model_copy(update={"lease_ttl_s": 3.0, "sweep_s": 0.3, "drain_grace_s": 1.0})


@pytest.fixture
def emulated_fleet(fast: Settings, tmp_path: Path, tiny_model: Path) -> FleetFactory:
    """Makes a fleet without workers yet; its arguments are options of the emulated engine."""

    def make(**options: Any) -> FleetHarness:
        profile = emulated_profile(tmp_path, model_dir=tiny_model, **options)
        return FleetHarness(fast, profile, tmp_path)

    return make


@pytest.fixture(scope="session")
def own_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedRedis]:
    """A Redis that a test may kill, wipe and fill."""
    with EmbeddedRedis(tmp_path_factory.mktemp("own-redis"), free_port(), REDIS_PASSWORD) as redis:
        yield redis


@pytest.fixture(scope="session")
def fault_fleet_at_work(
    own_redis: EmbeddedRedis,
    s3_server: EmbeddedS3,
    tiny_model: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[FaultFleet]:
    folder = tmp_path_factory.mktemp("fault-fleet")
    stats = folder / "stats.jsonl"
    profile = emulated_profile(
        folder,
        model_dir=tiny_model,
        lengths="uniform:20:300",
        token_ms=5,
        slots=8,
        stats_file=stats,
        faults={"poison": [poison_ids(tiny_model)], "poison_delay_s": 0.3},
    )
    # A worker that waits for its whole grace where it should not fails its test by the time limit.
    settings = fault_fleet_settings(own_redis, s3_server, folder, drain_grace_s=10 * WAIT_S)
    with FaultFleet(settings, profile, folder, own_redis, stats) as fault_fleet:
        yield fault_fleet


@pytest.fixture
def fault_fleet(fault_fleet_at_work: FaultFleet) -> Iterator[FaultFleet]:
    """The fleet, without faults and runs before and after the test."""
    fault_fleet_at_work.clear()
    yield fault_fleet_at_work
    fault_fleet_at_work.clear()


@pytest.fixture
def two(fault_fleet: FaultFleet) -> FaultFleet:
    """The fleet with its workers w0 and w1 ready."""
    for name in ("w0", "w1"):
        worker = fault_fleet.named.get(name)
        if worker is None or worker.process.poll() is not None:
            fault_fleet.launch(name)  # both boot at once
    fault_fleet.bring_up("w0", "w1")
    return fault_fleet


def poison_ids(model: Path) -> list[int]:
    """The ids of the words that kill the engine, as they stand inside a prompt."""
    renderer = ChatRenderer(model)
    plain, poisoned = (
        renderer.render([{"role": "user", "content": f"x{text} x"}], None, thinking=True)
        for text in ("", POISON)
    )
    start = next(i for i, (a, b) in enumerate(zip(plain, poisoned, strict=False)) if a != b)
    ids = poisoned[start : start + len(poisoned) - len(plain)]
    assert "poison" in renderer.decode(ids)
    return ids
