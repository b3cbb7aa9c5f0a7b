"""Redis restarted, unreachable, torn, wiped, full: under workers that go on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from dflashq.operations.runs.reconcile import reconcile
from tests.support.fault_fleet import FaultFleet
from tests.support.fleet import wait_until

pytestmark = pytest.mark.fleet


@contextmanager
def same_workers(fault_fleet: FaultFleet) -> Iterator[None]:
    """No worker ends or is replaced meanwhile."""
    before = {name: worker.process.pid for name, worker in fault_fleet.named.items()}
    yield
    assert {name: worker.process.pid for name, worker in fault_fleet.named.items()} == before
    assert all(worker.process.poll() is None for worker in fault_fleet.named.values())


def finish(fault_fleet: FaultFleet, run: str, prompts: int, held: set[str]) -> None:
    fault_fleet.wait_finished(run)
    assert fault_fleet.oracle(run).accepted == prompts
    asked = fault_fleet.request_counts()
    assert {asked[prompt] for prompt in held} == {1}


def test_redis_dies_and_comes_back(two: FaultFleet) -> None:
    with same_workers(two):
        with two.slowly():
            two.begin("redis-dies", 80, batch_size=40)
            held = two.wait_kept("redis-dies", 15)
            holds = {worker: two.held_by("redis-dies", worker) for worker in two.workers}
            log_lengths = {worker: len(worker.log.read_text()) for worker in two.workers}
            two.redis.kill()
        wait_until(
            lambda: all(
                "Redis does not answer" in w.log.read_text()[n:]
                for w, n in log_lengths.items()
                if holds[w]
            ),
            "who holds a lease has missed Redis",
        )
        two.redis.start()
        finish(two, "redis-dies", 80, held)
        assert two.ledger.status("redis-dies").done == 2


def test_redis_out_of_reach_for_longer_than_the_lease_costs_nobody_a_batch(two: FaultFleet) -> None:
    """Nobody aborts, and nobody is expired before a full lease time of connectivity."""
    two.set_faults(slow=2.0)
    two.begin("cut-off", 80, batch_size=40)
    held = two.wait_kept("cut-off", 10)
    leased = {(b.name, b.worker) for b in two.ledger.status("cut-off").leased}
    with same_workers(two):
        for proxies in two.proxies.values():
            proxies.redis.cut()
        time.sleep(two.settings.lease_ttl_s * 1.5)  # the outage itself
        for proxies in two.proxies.values():
            proxies.redis.pass_on()
        wait_until(lambda: all(worker.ready for worker in two.named.values()), "they are back")
        two.set_faults()
        finish(two, "cut-off", 80, held)
    assert leased
    for batch, _ in leased:
        assert [row["what"] for row in two.ledger.story("cut-off", batch)] == []


def test_redis_frozen_and_answers_lost(two: FaultFleet) -> None:
    """Every request may or may not have happened: all are safe to send again."""
    with same_workers(two):
        with two.slowly():
            for proxies in two.proxies.values():
                proxies.redis.lost = 0
            two.begin("frozen", 80, batch_size=20)
            held = two.wait_kept("frozen", 10)
            for proxies in two.proxies.values():
                proxies.redis.lose_replies()
        wait_until(
            lambda: all(proxies.redis.lost > 2 for proxies in two.proxies.values()),
            "answers are lost",
        )
        for proxies in two.proxies.values():
            proxies.redis.freeze()
        time.sleep(2.0)  # the outage itself: who waits for a frozen Redis tells nobody
        for proxies in two.proxies.values():
            proxies.redis.pass_on()
        finish(two, "frozen", 80, held)
    assert sum(proxies.redis.lost for proxies in two.proxies.values()) > 0


def test_redis_with_a_torn_tail_heals_from_s3(two: FaultFleet) -> None:
    """The end of the log is gone: what it said is found out again."""
    two.set_faults(slow=3.0)
    two.begin("torn", 100, batch_size=20)
    two.wait_kept("torn", 10)
    wait_until(lambda: two.ledger.status("torn").done >= 1, "a batch is done")
    two.set_faults()
    with same_workers(two):
        two.redis.kill()
        log = max((two.redis.folder / "appendonlydir").glob("*.incr.aof"))
        with log.open("r+b") as file:
            file.truncate(max(0, log.stat().st_size - 2048))
        two.redis.start()
        two.wait_finished("torn")
        assert two.oracle("torn").accepted == 100


def test_redis_wiped_under_live_workers_is_rebuilt_from_s3(two: FaultFleet) -> None:
    two.set_faults(slow=2.0)
    two.begin("wiped", 160, batch_size=20)
    wait_until(lambda: two.ledger.status("wiped").done >= 2, "two batches are done")
    two.set_faults(slow=8.0)
    held = two.wait_kept("wiped", 10)
    with same_workers(two):
        with two.redis.client() as client:
            client.flushall()
        wait_until(
            lambda: all("are held in memory" in w.tail(300) for w in two.named.values()),
            "the workers hold what they have",
        )
        two.set_faults()
        healed = reconcile(two.ledger, two.blobs, two.hints, "wiped")
        assert not healed.known
        assert len(healed.adopted) >= 2
        two.wait_finished("wiped")
    assert two.oracle("wiped").accepted == 160
    # Another worker may get the batch first: then what was held is generated again, and counted.
    asked = two.request_counts()
    again = sum(asked[prompt] > 1 for prompt in held)
    print(f"{again} of {len(held)} generations kept before the wipe were asked for again")  # noqa: T201
    assert max(asked[prompt] for prompt in held) <= 2


def test_a_full_redis_closes_the_gate_and_commits_make_room(two: FaultFleet) -> None:
    """Renew, begin and complete get through; what is finished waits in memory."""
    two.set_faults(slow=4.0)
    two.begin("full", 120, batch_size=20)
    with two.redis.client() as client:
        limit = client.config_get("maxmemory")["maxmemory"]
        used = client.info("memory")["used_memory"]
        with same_workers(two):
            try:
                client.config_set("maxmemory", used)
                wait_until(
                    lambda: any("used its budget" in w.tail(300) for w in two.named.values()),
                    "keeping is refused",
                )
                two.set_faults()
                done = two.ledger.status("full").done
                wait_until(lambda: two.ledger.status("full").done > done, "a batch commits")
            finally:
                client.config_set("maxmemory", limit)
            two.wait_finished("full")
            assert two.oracle("full").accepted == 120


def test_single_answers_of_redis_are_lost(two: FaultFleet) -> None:
    """One lost answer of Redis, of every kind, at a quiet moment each: the run does not notice."""
    two.begin("lossy", 80, batch_size=20)
    worker = two.holder("lossy")
    proxies = two.proxies[worker.name.removesuffix("@test")]
    held = two.wait_kept("lossy", 5)
    with same_workers(two):
        for _ in range(6):
            before = proxies.redis.lost
            proxies.redis.lose_reply_to(b"EVALSHA")
            wait_until(lambda b=before: proxies.redis.lost > b, "an answer is lost")  # type: ignore[misc]
        finish(two, "lossy", 80, held)
