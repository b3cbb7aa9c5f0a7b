"""Redis answers and refuses, in every way that passes: workers wait, and nothing is lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from tests.fleet.test_faults_redis import finish, same_workers
from tests.support.fault_fleet import FaultFleet
from tests.support.fleet import WorkerHandle
from tests.support.redis_refusals import REFUSALS, full
from tests.support.wait import wait_until

pytestmark = pytest.mark.fleet


def log_lines(worker: WorkerHandle, since: int) -> list[str]:
    """What a worker has logged since its log was so long."""
    return worker.log.read_text(errors="replace")[since:].splitlines()


@contextmanager
def waited_out(fault_fleet: FaultFleet, words: str) -> Iterator[Callable[[], bool]]:
    """Whether all gates are closed, in the block; then they open. Each thing is told once."""
    lengths = {
        name: len(w.log.read_text(errors="replace")) for name, w in fault_fleet.named.items()
    }

    def all_tell(sentence: str) -> bool:
        return all(
            any(sentence in line for line in log_lines(worker, lengths[name]))
            for name, worker in fault_fleet.named.items()
        )

    yield partial(all_tell, "closes: finished work cannot be kept")
    wait_until(lambda: all_tell("Redis serves again"), f"all tell the end of {words}")
    wait_until(lambda: all_tell("the gate opens"), f"all gates are open after {words}")
    for name, worker in fault_fleet.named.items():
        lines = log_lines(worker, lengths[name])
        assert sum("Redis refuses" in line and words in line for line in lines) == 1, lines
        assert not any("Traceback" in line for line in lines), "\n".join(lines)


def test_refusals_of_redis_cost_nothing(two: FaultFleet) -> None:
    held, since = set[str](), time.time()
    two.set_faults(slow=8.0)
    two.begin("redis-refuses", 720, batch_size=180)
    with same_workers(two):
        for words, refusal in REFUSALS.items():
            held |= two.wait_kept("redis-refuses", 4)
            with waited_out(two, words) as closed, refusal(two.redis):
                wait_until(closed, f"all gates close for {words}")
        two.set_faults()
        finish(two, "redis-refuses", 720, held)
    assert set(two.request_counts(since).values()) == {1}


def test_a_fleet_that_starts_on_a_full_redis_works_it_empty(two: FaultFleet) -> None:
    """No hint can be sent or received: whoever is left claims without, also what the dead held."""
    with two.slowly():
        two.begin("full-restart", 120, batch_size=20)
        held = two.wait_kept("full-restart", 10)
        gone = two.named["w1"]
        wait_until(lambda: bool(two.held_by("full-restart", gone)), "w1 holds a batch")
        for worker in two.named.values():
            worker.kill()
    with full(two.redis):
        (again,) = two.bring_up("w0")
        wait_until(lambda: two.ledger.status("full-restart").finished, "all is done")
        assert two.oracle("full-restart").accepted == 120
        assert again.stop() == 0, "a stop is heard while the consumer waits for room"
    asked = two.request_counts()
    assert {asked[prompt] for prompt in held} == {1}
