"""When a sweep takes back leases that ran out, and when it must not yet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from dflashq.config import Settings
from dflashq.core import keys
from dflashq.embedded.redis import EmbeddedRedis
from dflashq.ledger import Hints
from dflashq.ledger.outage import UNREACHABLE
from dflashq.ledger.refusal import Need
from dflashq.operations.housekeeping.sweep import Sweeper
from dflashq.system.ports import free_port
from tests.support.ledger_fixture import B1, B2, LedgerFixture
from tests.support.redis_refusals import full

TTL_S = 100.0


class Hands:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hands]:
    made = Hands()
    with monkeypatch.context() as patched:
        patched.setattr("dflashq.operations.housekeeping.sweep.time.monotonic", made)
        yield made


@pytest.fixture
def bench(settings: Settings) -> LedgerFixture:
    """A run with a batch whose holder was silent for too long, and one that waits."""
    made = LedgerFixture(settings).start(B1, B2)
    made.silence(made.lease(B1).batch)
    return made


def swept(sweeper: Sweeper, bench: LedgerFixture) -> list[str]:
    """The batches that one sweep took back."""
    bench.raw.delete(keys.SWEEP_LOCK)
    found = sweeper.sweep(1)
    assert found is not None
    return found.expired


@pytest.mark.parametrize(("code", "need"), [("BUSY", Need.ANSWER), (UNREACHABLE, Need.ANSWER)])
def test_an_outage_between_two_sweeps_gives_every_holder_its_time(
    bench: LedgerFixture, hands: Hands, code: str, need: Need
) -> None:
    sweeper = Sweeper(bench.ledger, Hints(bench.settings), TTL_S)
    assert swept(sweeper, bench) == []
    hands.now += TTL_S
    bench.ledger.outage.failed(code, "another thread was told so", need)
    hands.now += TTL_S - 1
    assert swept(sweeper, bench) == []
    hands.now += 1
    assert swept(sweeper, bench) == [f"{bench.run}/{B1}"]


def test_a_full_redis_keeps_no_lease_of_the_dead(
    settings: Settings, tmp_path: Path, hands: Hands
) -> None:
    """It takes no hints, which no lease waits for."""
    with EmbeddedRedis(tmp_path / "own", free_port(), "own", maxmemory="64mb") as server:
        own = settings.model_copy(
            update={"redis_url": server.url, "redis_password": SecretStr("own")}
        )
        bench = LedgerFixture(own).start(B1, B2)
        bench.silence(bench.lease(B1).batch)
        sweeper = Sweeper(bench.ledger, Hints(own), TTL_S)
        with full(server):
            assert swept(sweeper, bench) == []
            hands.now += TTL_S
            assert swept(sweeper, bench) == [f"{bench.run}/{B1}"]
