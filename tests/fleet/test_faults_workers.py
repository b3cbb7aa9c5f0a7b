"""Workers, engines and hints that die, freeze, are doubled or swallowed."""

from __future__ import annotations

import signal
import time

import psutil
import pytest

from dflashq.core import keys
from dflashq.ledger.connection import SEPARATOR
from tests.support.fault_fleet import FaultFleet, engine_events, engine_of, processes, put_of
from tests.support.fleet import WorkerHandle, wait_until
from tests.support.wait import WAIT_S

pytestmark = pytest.mark.fleet


def finish(fault_fleet: FaultFleet, run: str, prompts: int, held: set[str]) -> None:
    """The run ends, every prompt accepted; what was held was asked for once, in all."""
    fault_fleet.wait_finished(run)
    assert fault_fleet.oracle(run).accepted == prompts
    asked = fault_fleet.request_counts()
    assert {asked[prompt] for prompt in held} == {1}


def wait_leased_again(
    fault_fleet: FaultFleet, run: str, batches: set[str], dead: WorkerHandle
) -> None:
    """Block until somebody else holds (or has done) what the dead worker held."""

    def recovered() -> bool:
        states = {b.name: b for b in fault_fleet.ledger.batch_states(run)}
        return all(
            states[b].state == "done"
            or (states[b].state == "leased" and states[b].worker != dead.name)
            for b in batches
        )

    wait_until(recovered, f"{batches} are at work again")


def test_a_killed_engine_is_replaced_under_its_worker(two: FaultFleet) -> None:
    with two.slowly():
        two.begin("engine-dies", 80, batch_size=40)
        worker = two.holder("engine-dies")
        held = two.wait_kept("engine-dies", 10)
        engine = engine_of(worker)
        assert engine is not None
        engine.kill()
    wait_until(lambda: engine_of(worker) not in (None, engine), "another engine runs")
    finish(two, "engine-dies", 80, held)
    assert worker.process.poll() is None
    last_error = two.ledger.workers()[worker.name]["last_error"]
    assert "UTC engine down: " in last_error, last_error
    assert all(state.attempts == 1 for state in two.ledger.batch_states("engine-dies"))


def test_a_killed_worker_takes_its_engine_along_and_another_goes_on(two: FaultFleet) -> None:
    with two.slowly():
        two.begin("worker-dies", 80, batch_size=40)
        worker = two.holder("worker-dies")
        held = two.wait_kept("worker-dies", 10)
        engine, batches = engine_of(worker), two.held_by("worker-dies", worker)
        assert engine is not None
        assert batches
        worker.kill()
    wait_until(lambda: not engine.is_running(), "the orphaned engine is gone")
    wait_leased_again(two, "worker-dies", batches, worker)
    finish(two, "worker-dies", 80, held)


def test_worker_and_engine_killed_at_once_and_back_under_the_same_name(two: FaultFleet) -> None:
    """The newborn has the name at once, since that process is gone; the batches as leases end."""
    with two.slowly():
        two.begin("both-die", 80, batch_size=40)
        worker = two.holder("both-die")
        held = two.wait_kept("both-die", 10)
        for process in reversed(worker.family()):
            process.kill()
    worker.process.wait(WAIT_S)
    newborn = two.launch(worker.name.removesuffix("@test"))
    newborn.wait_ready()
    finish(two, "both-die", 80, held)
    assert set(processes(two.folder)) == {p for w in two.workers for p in w.family()}


def test_a_zombie_that_wakes_past_its_lease_is_told_and_stopped(two: FaultFleet) -> None:
    with two.slowly():
        two.begin("zombie", 80, batch_size=40)
        zombie = two.holder("zombie")
        held = two.wait_kept("zombie", 10)
        zombie.signal(signal.SIGSTOP)
    batches = two.held_by("zombie", zombie)
    assert batches
    wait_leased_again(two, "zombie", batches, zombie)
    zombie.signal(signal.SIGCONT)
    wait_until(lambda: "lease lost" in zombie.tail(200), "the zombie is told")
    finish(two, "zombie", 80, held)
    assert zombie.process.poll() is None


def test_a_zombie_that_wakes_to_upload_finds_the_object_of_another(two: FaultFleet) -> None:
    """It has all its answers and waits for S3; meanwhile another commits. One object, one count."""
    with two.slowly():
        two.begin("late", 40, batch_size=40)
        zombie = two.holder("late")
        proxies = two.proxies[zombie.name.removesuffix("@test")]
        proxies.s3.answer(503, "SlowDown", only=put_of(two.settings, "late"))
    held = two.wait_kept("late", 40)
    wait_until(lambda: proxies.s3.answered > 0, "it tries to upload")
    zombie.signal(signal.SIGSTOP)
    two.wait_finished("late")
    key = keys.completions_object("late", keys.batch_name(0))
    object_before = two.blobs.get(key)
    proxies.s3.pass_on()
    zombie.signal(signal.SIGCONT)
    # Its heartbeat hears of it first, or its upload meets the object and takes it as it is.
    ends = ("lease lost: run=late", "adopted: run=late")
    wait_until(lambda: any(end in zombie.tail(400) for end in ends), "the zombie is told")
    assert two.blobs.get(key) == object_before
    finish(two, "late", 40, held)


def test_a_worker_cut_from_the_ledger_uploads_and_the_next_one_adopts(two: FaultFleet) -> None:
    """Its object is whole, whoever has the lease: it counts, once."""
    with two.slowly():
        two.begin("adopted", 40, batch_size=40)
        first = two.holder("adopted")
        proxies = two.proxies[first.name.removesuffix("@test")]
        two.wait_kept("adopted", 10)
        proxies.redis.cut()
    key = keys.completions_object("adopted", keys.batch_name(0))
    wait_until(lambda: two.blobs.head(key) is not None, "somebody uploads")
    object_before = two.blobs.get(key)
    two.wait_finished("adopted")
    proxies.redis.pass_on()
    assert two.oracle("adopted").accepted == 40
    assert two.blobs.get(key) == object_before
    wait_until(lambda: two.named[first.name.removesuffix("@test")].ready, "the first is back")


def test_nothing_is_begun_under_a_lease_that_may_be_over(two: FaultFleet) -> None:
    """Cut from the ledger past its lease, a worker may have been replaced: it waits for proof."""
    two.set_faults(slow=2.0)
    two.begin("unproven", 120, batch_size=60)
    worker = two.holder("unproven")
    two.wait_kept("unproven", 5)
    engine, proxies = engine_of(worker), two.proxies[worker.name.removesuffix("@test")]
    assert engine is not None
    proxies.redis.cut()
    over = time.time() + two.settings.lease_ttl_s + 0.3
    wait_leased_again(two, "unproven", two.held_by("unproven", worker), worker)
    two.wait_finished("unproven")
    assert two.oracle("unproven").accepted == 120
    events = [row for row in engine_events(two.stats) if row["event"] == "received"]
    assert max(row["t"] for row in events) > over + 1, "the other had work long after that"
    assert not [row for row in events if row["pid"] == engine.pid and row["t"] > over]
    proxies.redis.pass_on()


def test_hints_may_be_doubled_late_or_swallowed(two: FaultFleet) -> None:
    two.set_faults(slow=3.0)
    two.begin("hints", 160, batch_size=10)
    queue = two.profile.queue
    names = [state.name for state in two.ledger.batch_states("hints")]
    two.wait_kept("hints", 5)
    two.hints.publish(queue, "hints", names)
    two.hints.publish(queue, "hints", names[:3], urgent=True)
    with two.redis.client() as client:
        for step in ("", f"{SEPARATOR}3", f"{SEPARATOR}6"):
            client.delete(queue + step)
    assert two.hints.waiting(queue) == 0
    assert two.ledger.status("hints").pending > 4
    wait_until(
        lambda: two.hints.waiting(queue) >= two.ledger.status("hints").pending,
        "swallowed hints are published again",
    )
    # Some remain, one is swallowed: the queue is topped up all the same.
    with two.redis.client() as client:
        client.lpop(f"{queue}{SEPARATOR}6")
    wait_until(
        lambda: two.hints.waiting(queue) >= two.ledger.status("hints").pending,
        "one swallowed hint is published again",
    )
    two.set_faults()
    two.wait_finished("hints")
    before = two.request_counts()
    two.hints.publish(queue, "hints", names)
    wait_until(lambda: two.hints.waiting(queue) == 0, "late hints are taken")
    two.oracle("hints")
    assert two.request_counts() == before
    assert set(before.values()) >= {1}


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGQUIT, None])
def test_a_second_signal_or_sigquit_is_faster_and_never_wrong(
    two: FaultFleet, second: signal.Signals | None
) -> None:
    """No answer ends within the grace, which is longer than any wait of a test."""
    run = f"second-{second.name.lower() if second else 'quit-alone'}"
    two.set_faults(slow=8.0)
    two.begin(run, 60, batch_size=30)
    worker = two.holder(run)
    held = two.wait_kept(run, 10)
    two.set_faults(hang=True)
    batches = two.held_by(run, worker)
    assert batches
    worker.signal(signal.SIGTERM if second else signal.SIGQUIT)
    if second:
        wait_until(lambda: "draining" in worker.tail(), "it drains")
        worker.signal(second)
    assert worker.process.wait(WAIT_S) == 0
    assert not two.held_by(run, worker)
    assert not [p for p in worker.family() if p.status() != psutil.STATUS_ZOMBIE]
    two.set_faults()
    finish(two, run, 60, held)
