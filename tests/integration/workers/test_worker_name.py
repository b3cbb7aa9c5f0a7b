"""A worker's name: a living twin is refused and loses nothing, a dead one is replaced."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from typing import Any

import pytest

from dflashq.config import Settings
from dflashq.core import keys
from dflashq.core.errors import UsageError
from dflashq.core.worker_identity import WorkerBoot
from dflashq.ledger import Ledger
from dflashq.system.process_identity import new_boot
from workers.worker_name import WorkerName

LEASE_S = 1.0
NAME = "gpu0@gpu-host"
ROW: dict[str, Any] = {"engine": "starting"}


class Stopped(Exception):
    """What a stop raises while the boot waits."""


@pytest.fixture
def ledger(settings: Settings) -> Ledger:
    return Ledger(settings.model_copy(update={"lease_ttl_s": LEASE_S}))


def never_replaced() -> None:
    pytest.fail("another boot has the name")


def never_waits(seconds: float) -> None:
    pytest.fail("it waited")


def name_of(
    ledger: Ledger,
    boot: WorkerBoot | None = None,
    *,
    lease_s: float = LEASE_S,
    pause: Callable[[float], object] = time.sleep,
    on_replaced: Callable[[], None] = never_replaced,
) -> WorkerName:
    return WorkerName(ledger, boot or new_boot(NAME), lease_s, on_replaced=on_replaced, pause=pause)


def elsewhere(ledger: Ledger, **callbacks: Any) -> WorkerName:
    """The name of a worker on another host, of the same host name and process number."""
    boot = new_boot(NAME)
    there = WorkerBoot(NAME, "another-host", boot.started_ms, boot.token)
    return name_of(ledger, there, **callbacks)


def test_a_free_name_is_taken_at_once(ledger: Ledger) -> None:
    name = name_of(ledger, pause=never_waits)
    name.take(ROW)
    name.take(ROW)  # the boot was tried again after an outage
    row = ledger.worker(NAME)
    assert row is not None
    assert (row["boot"], row["engine"], name.taken) == (name.boot.text, "starting", True)
    name.retire()
    assert ledger.worker(NAME) is None


@pytest.mark.parametrize("where", [name_of, elsewhere])
def test_a_living_twin_is_refused_and_nothing_of_the_other_changes(
    ledger: Ledger, where: Any
) -> None:
    healthy = name_of(ledger)
    healthy.take({"engine": "ready"})

    def heartbeat(seconds: float) -> None:
        time.sleep(0.01)  # or it comes within the same millisecond
        healthy.renew()

    for _ in range(7):
        twin = where(ledger, pause=heartbeat)
        assert twin.boot.text != healthy.boot.text
        with pytest.raises(UsageError, match=f"{NAME} is alive on host .* with -n") as refused:
            twin.take(ROW)
        assert refused.value.exit_code == 2
        assert not twin.taken
        twin.retire()
        row = ledger.worker(NAME)
        assert row is not None
        assert (row["boot"], row["engine"]) == (healthy.boot.text, "ready")


def test_the_dead_of_another_host_are_waited_for(ledger: Ledger) -> None:
    """Their last row may be as old as it likes: Redis may have been away."""
    elsewhere(ledger).take(ROW)
    _grow_old(ledger, 3600)
    name, began = name_of(ledger), time.monotonic()
    name.take({"engine": "new"})
    assert time.monotonic() - began >= LEASE_S
    assert (ledger.worker(NAME) or {})["engine"] == "new"


def test_one_that_was_cut_off_for_longer_than_its_lease_is_no_dead_one(ledger: Ledger) -> None:
    healthy = elsewhere(ledger)
    healthy.take({"engine": "ready"})
    _grow_old(ledger, 3600)  # Redis was away for an hour; here it is again
    twin = name_of(ledger, pause=lambda seconds: healthy.renew())
    with pytest.raises(UsageError, match="is alive"):
        twin.take(ROW)


def test_one_that_provably_ended_here_is_not_waited_for(ledger: Ledger) -> None:
    dead = name_of(ledger)
    dead._identity |= {
        "pid_start": dead._identity["pid_start"] - 1
    }  # a process that had our number
    dead.take(ROW)
    name = name_of(ledger, pause=never_waits)
    name.take({"engine": "new"})
    assert (ledger.worker(NAME) or {})["boot"] == name.boot.text


def test_one_that_ends_in_order_meanwhile_leaves_the_name_at_once(ledger: Ledger) -> None:
    leaving = elsewhere(ledger)
    leaving.take(ROW)
    name = name_of(ledger, lease_s=3600.0, pause=lambda seconds: leaving.retire())
    name.take({"engine": "new"})
    assert (ledger.worker(NAME) or {})["engine"] == "new"


def test_of_two_that_wait_for_one_name_one_gets_it(ledger: Ledger) -> None:
    elsewhere(ledger).take(ROW)
    first = name_of(ledger)
    second = elsewhere(ledger, pause=lambda seconds: first.take(ROW) if not first.taken else None)
    with pytest.raises(UsageError, match="is alive"):
        second.take(ROW)
    assert (ledger.worker(NAME) or {})["boot"] == first.boot.text


def test_a_stop_ends_the_wait(ledger: Ledger) -> None:
    elsewhere(ledger).take(ROW)

    def stop(seconds: float) -> None:
        raise Stopped

    name = name_of(ledger, pause=stop)
    with pytest.raises(Stopped):
        name.take(ROW)
    assert not name.taken


def test_one_that_was_replaced_is_told_once_and_writes_nothing(
    ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[int] = []
    frozen = elsewhere(ledger, on_replaced=lambda: calls.append(1))
    frozen.take({"engine": "ready"})
    frozen.announce({"engine": "ready"})
    assert not calls
    name_of(ledger).take({"engine": "new"})
    with caplog.at_level(logging.CRITICAL):
        frozen.renew()
        frozen.announce({"engine": "ready"})
    assert calls == [1]
    assert "another one has its name now" in caplog.text
    frozen.retire()
    assert (ledger.worker(NAME) or {})["engine"] == "new"


def _grow_old(ledger: Ledger, seconds: float) -> None:
    row = ledger.worker(NAME)
    assert row is not None
    first = {"seen_ms": int(row["seen_ms"] - seconds * 1000)}
    ledger._redis.hset(keys.WORKERS, NAME, json.dumps(first | row | first))
