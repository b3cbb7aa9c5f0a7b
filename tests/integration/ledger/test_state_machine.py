"""The ledger against a model of it: any order of verbs, by live workers, zombies and repeats."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import hypothesis
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from dflashq.config import Settings
from dflashq.core.errors import LeaseLostError, LedgerError
from dflashq.core.worker_identity import WorkerBoot
from dflashq.ledger import Lease
from dflashq.operations.monitoring.run_condition import Condition, run_condition
from dflashq.operations.monitoring.worker_view import WorkerView
from tests.support.ledger_fixture import LedgerFixture, boot, ref

BATCHES = tuple(f"batch-{n:06d}{r}" for n in range(3) for r in ("", ".r1"))
# Two names; one of them on two hosts and started twice on one of them.
BOOTS = (
    boot(1),
    boot(2),
    boot(1, host="another-host"),
    boot(1, name="w2"),
)
ATTEMPTS = 2
BUDGET_BYTES = 400
OLD = st.sampled_from([False, False, True])
READY = WorkerView("w0", "ready", "p", "0", 0, 80, 0.0, 0, silent_s=1, queue="q")
MOVING = {
    *(Condition.AT_WORK, Condition.PENDING),
    *(Condition.CANARY_AT_WORK, Condition.CANARY_PENDING),
}
ENDS = {
    *(Condition.FINISHED, Condition.PAUSED, Condition.ENQUEUE_UNFINISHED),
    *(Condition.CANARY_DEAD, Condition.CANARY_LOST, Condition.CANARY_UNJUDGED),
}
TTL_S = 3600.0  # nothing expires by itself: a rule makes leases silent


class LedgerMachine(RuleBasedStateMachine):
    """Fields with the names of the ledger's words are the model; `bench` is the real thing."""

    leases = Bundle("leases")

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.bench = LedgerFixture(settings)
        self.ledger = self.bench.ledger
        self.state = "active"
        self.canary = ""  # the batch that the others wait for
        self.where: dict[str, str] = {}
        self.holder: dict[str, Lease] = {}
        self.begun: set[str] = set()  # fences
        self.boots: dict[str, WorkerBoot] = {}  # by fence
        self.silent: set[str] = set()
        self.spent: Counter[str] = Counter()
        self.attempts: Counter[str] = Counter()
        self.kept: dict[str, dict[str, int]] = {}
        self.done: dict[str, dict[str, int]] = {}
        self.claims = 0

    # --- the model's own moves

    def pick(self, lease: Lease, old: bool) -> Lease:
        """This lease, or mostly whoever holds its batch now: zombies would crowd out the others."""
        return lease if old else self.holder.get(lease.batch, lease)

    def claimable(self) -> list[str]:
        """What may be claimed now: the canary alone while the others wait for it."""
        pending = sorted(b for b, where in self.where.items() if where == "pending")
        if self.canary:
            pending = [self.canary] if self.canary in pending else []
        return pending if self.state == "active" else []

    def holds(self, lease: Lease) -> bool:
        return self.holder.get(lease.batch) == lease

    def kept_bytes(self) -> int:
        return sum(sum(fields.values()) for fields in self.kept.values())

    def end(self, batch: str, where: str) -> None:
        del self.holder[batch]
        self.silent.discard(batch)
        self.where[batch] = where
        if self.state == "cancelled":
            self.kept.pop(batch, None)

    def requeue(self, batch: str) -> str:
        where = "dead" if self.spent[batch] >= ATTEMPTS else "pending"
        self.end(batch, where)
        return where

    # --- a run and its batches

    @initialize(
        batches=st.sets(st.sampled_from(BATCHES), min_size=3),
        canary=st.sampled_from(("", "", BATCHES[0])),
    )
    def enqueue(self, batches: set[str], canary: str) -> None:
        self.canary = canary
        self.ledger.register(self.bench.run, "f" * 64, "q", 9, len(BATCHES), canary)
        self.add(batches, twice=False)

    @rule(batches=st.sets(st.sampled_from(BATCHES), min_size=1), twice=st.booleans())
    def add(self, batches: set[str], twice: bool) -> None:
        new = [batch for batch in batches if batch not in self.where]
        assert self.ledger.add(self.bench.run, batches) == len(new)
        if twice:
            assert self.ledger.add(self.bench.run, batches) == 0
        self.where |= dict.fromkeys(new, "pending")

    @rule(state=st.sampled_from(["active", "active", "paused"]), twice=st.booleans())
    def pause_or_resume(self, state: str, twice: bool) -> None:
        self._set_state(state, twice)

    @precondition(lambda self: self.claims > 3)
    @rule(twice=st.booleans())
    def cancel(self, twice: bool) -> None:
        self._set_state("cancelled", twice)

    def _set_state(self, state: str, twice: bool) -> None:
        self.state = state if self.state != "cancelled" else "cancelled"
        for _ in range(1 + twice):
            assert self.ledger.set_state(self.bench.run, state, "asked") == self.state
        if self.state == "cancelled":
            self.kept = {b: k for b, k in self.kept.items() if self.where[b] == "leased"}

    @rule(only=st.none() | st.sets(st.sampled_from(BATCHES), min_size=1), twice=st.booleans())
    def revive(self, only: set[str] | None, twice: bool) -> None:
        dead = sorted(batch for batch, where in self.where.items() if where == "dead")
        dead = [batch for batch in dead if only is None or batch in only]
        assert self.ledger.revive(self.bench.run, "asked", only or ()) == dead
        if twice:
            assert self.ledger.revive(self.bench.run, "asked", only or ()) == []
        for batch in dead:
            self.where[batch], self.spent[batch] = "pending", 0

    @precondition(lambda self: self.canary)
    @rule(seen=st.sampled_from(["done", "dead", "lost"]), twice=st.booleans())
    def pause_at_canary(self, seen: str, twice: bool) -> None:
        """What the judgement of every worker does to a run that waits in vain."""
        for _ in range(1 + twice):
            pauses = self.state == "active" and self.where.get(self.canary, "lost") == seen
            assert self.ledger.pause_at_canary(self.bench.run, seen, "the canary") == pauses
            self.state = "paused" if pauses else self.state

    @precondition(lambda self: self.canary and self.claims > 5)
    @rule(twice=st.booleans())
    def release_canary(self, twice: bool) -> None:
        for _ in range(1 + twice):
            self.ledger.release_canary(self.bench.run)
        self.canary = ""

    @precondition(lambda self: self.where.get(self.canary) == "pending")
    @rule()
    def lose_canary(self) -> None:
        """No verb of ours does that: somebody deleted a key."""
        self.bench.raw.zrem(self.bench.key("pending"), self.canary)
        self.kept.pop(self.canary, None)
        self.bench.raw.delete(self.bench.key(f"kept:{self.canary}"))
        self.bench.raw.hset(self.bench.key("run"), "kept_bytes", self.kept_bytes())
        del self.where[self.canary]

    # --- leases

    @rule(
        target=leases,
        batch=st.sampled_from(("", *BATCHES)),
        boot=st.sampled_from(BOOTS),
        twice=st.booleans(),
    )
    def claim(self, batch: str, boot: WorkerBoot, twice: bool) -> Any:
        self.claims += 1
        ask = (batch, boot.name, f"{self.claims:016x}", int(TTL_S * 1000), 0, boot.text)
        got = self.ledger._call("claim", self.bench.run, *ask)
        if twice:
            assert self.ledger._call("claim", self.bench.run, *ask) == got
        pending = self.claimable()
        if not pending:
            why = "canary" if self.canary else "idle"
            assert got == [b"none", (why if self.state == "active" else self.state).encode()]
            return multiple()
        taken = batch if batch in pending else pending[0]
        assert got[:2] == [b"leased", taken.encode()]
        assert got[3] == self.attempts[taken]
        lease = Lease(self.bench.run, taken, got[2].decode(), boot.name, got[3])
        self.boots[lease.fence] = boot
        self.where[taken], self.holder[taken] = "leased", lease
        return lease

    @rule(lease=leases, old=OLD, twice=st.booleans())
    def begin(self, lease: Lease, old: bool, twice: bool) -> None:
        lease = self.pick(lease, old)
        if self.holds(lease) and lease.fence not in self.begun:
            self.begun.add(lease.fence)
            self.spent[lease.batch] += 1
            self.attempts[lease.batch] += 1
        for _ in range(1 + twice):
            try:
                assert self.ledger.begin(lease) == self.attempts[lease.batch]
                assert self.holds(lease)
            except LeaseLostError:
                assert not self.holds(lease)

    @rule(some=st.lists(leases, max_size=4), twice=st.booleans())
    def renew(self, some: list[Lease], twice: bool) -> None:
        held = [self.holds(lease) for lease in some]
        for _ in range(1 + twice):
            assert self.ledger.renew(self.bench.run, some, TTL_S) == (self.state, held)
        self.silent -= {lease.batch for lease in some if self.holds(lease)}

    @rule(
        lease=leases,
        old=OLD,
        fields=st.sets(st.sampled_from(["0:0", "0:v", "1:0", "1:1", "1:v"]), min_size=1),
        size=st.integers(1, 90),
        twice=st.booleans(),
    )
    def keep(self, lease: Lease, old: bool, fields: set[str], size: int, twice: bool) -> None:
        lease = self.pick(lease, old)
        mine = self.kept.get(lease.batch, {})
        new = {name: len(name) + size for name in fields if name not in mine}
        fits = not new or self.kept_bytes() + sum(new.values()) <= BUDGET_BYTES
        for _ in range(1 + twice):
            try:
                entries = [(name, b"x" * size) for name in fields]
                assert self.ledger.keep(lease, entries) == fits
                assert self.holds(lease)
            except LeaseLostError:
                assert not self.holds(lease)
        if self.holds(lease) and fits and new:
            self.kept[lease.batch] = mine | new
            self.spent[lease.batch] = 0

    @rule(
        lease=leases,
        old=OLD,
        accepted=st.integers(0, 9),
        sha=st.sampled_from(["a" * 64, "b" * 64]),
        twice=st.booleans(),
    )
    def complete(self, lease: Lease, old: bool, accepted: int, sha: str, twice: bool) -> None:
        lease = self.pick(lease, old)
        batch = lease.batch
        for _ in range(1 + twice):
            known = self.done.get(batch)
            try:
                got = self.ledger.complete(lease, ref(batch, sha), {"accepted": accepted})
            except LeaseLostError:
                assert known is None
                assert not self.holds(lease)
            except LedgerError:
                assert known is not None
                assert known["sha"] != sha
            else:
                assert got == ("already" if known else "done")
                if known is None:
                    assert self.holds(lease)
                    self.done[batch] = {"accepted": accepted, "sha": sha}
                    self.kept.pop(batch, None)
                    self.end(batch, "done")

    @rule(lease=leases, old=OLD, twice=st.booleans())
    def release(self, lease: Lease, old: bool, twice: bool) -> None:
        lease = self.pick(lease, old)
        for _ in range(1 + twice):
            mine = self.holds(lease)
            assert self.ledger.release(lease, "drain") == mine
            if mine:
                if lease.fence in self.begun and self.spent[lease.batch]:
                    self.spent[lease.batch] -= 1
                self.end(lease.batch, "pending")

    @rule(lease=leases, old=OLD, twice=st.booleans())
    def fail(self, lease: Lease, old: bool, twice: bool) -> None:
        lease = self.pick(lease, old)
        for _ in range(1 + twice):
            outcome = "fenced"
            if self.holds(lease):
                self.spent[lease.batch] += lease.fence not in self.begun
                outcome = self.requeue(lease.batch)
            assert self.ledger.fail(lease, "broken") == outcome

    @rule(lease=leases, old=OLD, twice=st.booleans())
    def kill(self, lease: Lease, old: bool, twice: bool) -> None:
        lease = self.pick(lease, old)
        for _ in range(1 + twice):
            mine = self.holds(lease)
            assert self.ledger.kill(lease, "conflict") == mine
            if mine:
                self.end(lease.batch, "dead")

    # --- housekeeping

    @precondition(lambda self: self.holder)
    @rule(data=st.data())
    def fall_silent(self, data: st.DataObject) -> None:
        batch = data.draw(st.sampled_from(sorted(self.holder)))
        self.bench.silence(batch)
        self.silent.add(batch)

    @rule(twice=st.booleans())
    def expire(self, twice: bool) -> None:
        for _ in range(1 + twice):
            outcomes = {batch: self.requeue(batch) for batch in sorted(self.silent)}
            assert dict(self.ledger.expire(self.bench.run)) == outcomes

    @rule(boot=st.sampled_from(BOOTS), twice=st.booleans())
    def disown(self, boot: WorkerBoot, twice: bool) -> None:
        """Only what ran out, of an earlier boot of that name on that host: no twin takes more."""
        for _ in range(1 + twice):
            let_run_out = {
                batch
                for batch in self.silent
                if (its := self.boots[self.holder[batch].fence]).name == boot.name
                and its.host_id == boot.host_id
                and its.started_ms < boot.started_ms
            }
            alive = {b: lease for b, lease in self.holder.items() if b not in self.silent}
            assert set(self.ledger.disown(self.bench.run, boot)) == let_run_out
            for batch in let_run_out:
                self.requeue(batch)
            assert alive.items() <= self.holder.items()

    @precondition(lambda self: self.claims > 8)
    @rule(batch=st.sampled_from(BATCHES), accepted=st.integers(1, 9), twice=st.booleans())
    def adopt(self, batch: str, accepted: int, twice: bool) -> None:
        for _ in range(1 + twice):
            free = self.where.get(batch) in (None, "pending", "dead")
            assert (
                self.ledger.adopt(self.bench.run, batch, ref(batch), {"accepted": accepted}) == free
            )
            if free:
                self.where[batch] = "done"
                self.done[batch] = {"accepted": accepted, "sha": "a" * 64}
                self.kept.pop(batch, None)

    # --- what always holds

    @invariant()
    def the_ledger_is_sound(self) -> None:
        pipe = self.bench.raw.pipeline(transaction=False)
        for part in ("pending", "leased"):
            pipe.zrange(self.bench.key(part), 0, -1)
        for part in ("done", "dead", "leases", "counters", "run"):
            pipe.hgetall(self.bench.key(part))
        for batch in BATCHES:
            pipe.hgetall(self.bench.key(f"kept:{batch}"))
        pending, leased, done, dead, leases, counters, run, *kept = pipe.execute()

        # Every batch is in exactly one place, and it is the right one.
        places = {"pending": pending, "leased": leased, "done": done, "dead": dead}
        found = [(name.decode(), place) for place, names in places.items() for name in names]
        assert sorted(found) == sorted(self.where.items())
        # One live fence a leased batch, none for any other.
        fences = {name.decode(): row.decode() for name, row in leases.items() if b":" not in name}
        assert fences == {batch: lease.fence for batch, lease in self.holder.items()}
        # What is done stays as it was; the counters are its sum.
        assert {b.decode(): row for b, row in done.items()}.keys() == self.done.keys()
        assert self.ledger.done(self.bench.run) == {
            batch: ref(batch, str(row["sha"])) for batch, row in self.done.items()
        }
        assert int(counters.get(b"accepted", 0)) == sum(
            row["accepted"] for row in self.done.values()
        )
        # What is kept is there, nothing else is, and it is counted right.
        for batch, raw in zip(BATCHES, kept, strict=True):
            raw.pop(b"bytes", None)
            sizes = {name.decode(): len(name) + len(payload) for name, payload in raw.items()}
            assert sizes == self.kept.get(batch, {}), batch
        assert 0 <= int(run.get(b"kept_bytes", 0)) == self.kept_bytes() <= BUDGET_BYTES

    @invariant()
    def the_condition_is_true(self) -> None:
        """Something can happen, or the condition says what ends the standstill."""
        status = self.ledger.status(self.bench.run)
        assert status.canary == (self.where.get(self.canary, "lost") if self.canary else "")
        workers = [READY, *(replace(READY, name=name) for name in {b.name for b in BOOTS})]
        now = run_condition(status, workers)
        assert status.name in now.sentence or not now.condition.needs_attention
        moves = bool(self.claimable()) or "leased" in self.where.values()
        if self.state == "cancelled":
            assert now.condition == Condition.CANCELLED
        elif self.state == "active" and moves:
            assert now.condition in MOVING
        else:
            assert now.condition in ENDS
        assert sorted(self.claimable()) == sorted(self.ledger.claimable(self.bench.run))


def test_the_ledger_behaves_as_its_model(settings: Settings) -> None:
    # A fraction of a MiB: the budget must be met within a few keeps.
    tight = settings.model_copy(
        update={"attempts": ATTEMPTS, "keep_budget_mb": BUDGET_BYTES / 2**20}
    )
    run_state_machine_as_test(
        lambda: LedgerMachine(tight),
        settings=hypothesis.settings(
            max_examples=100,
            stateful_step_count=50,
            deadline=None,
            database=None,
            suppress_health_check=list(hypothesis.HealthCheck),
        ),
    )
