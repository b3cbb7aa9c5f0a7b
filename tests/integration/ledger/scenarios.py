"""What must hold of the verbs, as functions: test_verbs runs them, test_guards breaks them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dflashq.core import keys
from dflashq.core.errors import LeaseLostError, LedgerError, NewerFormatError, UnknownRunError
from dflashq.ledger import Lease, Ledger
from tests.support.ledger_fixture import (
    B1,
    B2,
    B3,
    TTL_S,
    LedgerFixture,
    boot,
    entries,
    generation,
    ref,
    size,
)

Scenario = Callable[[LedgerFixture], None]
SCENARIOS: list[Scenario] = []


def scenario(function: Scenario) -> Scenario:
    SCENARIOS.append(function)
    return function


def verbs(ledger: Ledger) -> dict[str, Callable[[Lease], bool]]:
    """Every verb that takes a lease; True when it was accepted."""

    def accepted(call: Callable[[Lease], object]) -> Callable[[Lease], bool]:
        def verb(lease: Lease) -> bool:
            try:
                return call(lease) not in (False, "fenced")
            except LeaseLostError:
                return False

        return verb

    return {
        "begin": accepted(ledger.begin),
        "renew": accepted(lambda lease: ledger.renew(lease.run, [lease], TTL_S)[1][0]),
        "keep": accepted(lambda lease: ledger.keep(lease, entries(7))),
        "complete": accepted(lambda lease: ledger.complete(lease, ref(lease.batch), {"n": 1})),
        "release": accepted(lambda lease: ledger.release(lease, "drain")),
        "fail": accepted(lambda lease: ledger.fail(lease, "broken")),
        "kill": accepted(lambda lease: ledger.kill(lease, "conflict")),
    }


@contextmanager
def unchanged(bench: LedgerFixture) -> Iterator[None]:
    before = bench.picture()
    yield
    assert bench.picture() == before


# --- a run and its batches


@scenario
def register_tells_what_is_on_record(bench: LedgerFixture) -> None:
    bench.start(B1)
    with unchanged(bench):
        assert bench.ledger.register(bench.run, "f" * 64, "q", 10, 1) == "f" * 64
        assert bench.ledger.register(bench.run, "e" * 64, "other", 99, 9) == "f" * 64
    status = bench.ledger.status(bench.run)
    assert (status.queue, status.prompts, status.batches) == ("q", 10, 1)
    assert bench.ledger.runs()[bench.run] == "q"


@scenario
def a_run_of_a_newer_format_is_left_alone(bench: LedgerFixture) -> None:
    bench.start(B1)
    for version in ("2", "2.1", "newest"):
        bench.raw.hset(bench.key("run"), "schema", version)
        with unchanged(bench):
            with pytest.raises(NewerFormatError):
                bench.ledger.add(bench.run, [B2])
            assert bench.ledger.claim(bench.run, B1, "w1", TTL_S).lease is None
    bench.raw.hset(bench.key("run"), "schema", "1.9")
    assert bench.ledger.add(bench.run, [B2]) == 1


@scenario
def add_touches_no_batch_that_is_known(bench: LedgerFixture) -> None:
    bench.start(B1, B2, B3)
    bench.ledger.complete(bench.lease(B1), ref(B1), {})
    bench.ledger.kill(bench.lease(B2), "conflict")
    bench.lease(B3)
    with unchanged(bench):
        assert bench.ledger.add(bench.run, [B1, B2, B3]) == 0
    assert bench.ledger.add(bench.run, [B3, "batch-000004"]) == 1
    with unchanged(bench):
        assert bench.ledger.add(bench.run, ["batch-000004"]) == 0


@scenario
def pending_is_oldest_first(bench: LedgerFixture) -> None:
    oldest = [
        "batch-000002",
        "batch-000002.r2",
        "batch-000002.r10",
        "batch-000010",
        "batch-1000000",
    ]
    names = sorted(oldest, reverse=True)
    bench.start(*names)
    assert bench.ledger.pending(bench.run) == oldest
    assert bench.ledger.pending(bench.run, 2) == oldest[:2]
    assert [bench.lease().batch for _ in names] == oldest


@scenario
def a_run_that_is_unknown_stays_so(bench: LedgerFixture) -> None:
    with pytest.raises(UnknownRunError, match="dflashq status"):
        bench.ledger.set_state(bench.run, "paused", "asked")
    assert bench.ledger.claim(bench.run, "", "w1", TTL_S).why == "unknown"
    assert bench.ledger.renew(bench.run, [], TTL_S) == ("unknown", [])
    assert bench.ledger.state(bench.run) == "unknown"
    assert bench.picture() == {}


# --- claim and begin


@scenario
def claim_gives_the_named_batch_else_the_oldest(bench: LedgerFixture) -> None:
    bench.start(B1, B2, B3)
    two = bench.lease(B2)
    assert (two.batch, two.run, two.worker, two.attempts) == (B2, bench.run, "w1", 0)
    assert bench.lease(B2).batch == B1
    assert bench.lease("batch-999999").batch == B3
    idle = bench.ledger.claim(bench.run, B1, "w1", TTL_S)
    assert (idle.lease, idle.why) == (None, "idle")
    assert bench.states() == dict.fromkeys((B1, B2, B3), "leased")


@scenario
def claim_of_one_batch_only_takes_no_other(bench: LedgerFixture) -> None:
    bench.start(B1, B2, B3)

    def only(batch: str) -> tuple[str, str]:
        claim = bench.ledger.claim(bench.run, batch, "w1", TTL_S, only=True)
        return (claim.lease.batch if claim.lease else "", claim.why)

    assert only(B2) == (B2, "")
    bench.ledger.complete(bench.lease(B1), ref(B1), {})
    with unchanged(bench):
        assert only(B2) == ("", "taken")
        assert only(B1) == ("", "done")
    assert bench.states() == {B1: "done", B2: "leased", B3: "pending"}


@scenario
def claim_gives_nothing_of_a_run_that_is_not_active(bench: LedgerFixture) -> None:
    assert bench.ledger.claim(bench.run, B1, "w1", TTL_S).why == "unknown"
    bench.start(B1)
    for state in ("paused", "cancelled"):
        assert bench.ledger.set_state(bench.run, state, "asked") == state
        with unchanged(bench):
            claim = bench.ledger.claim(bench.run, B1, "w1", TTL_S)
            assert (claim.lease, claim.why) == (None, state)


@scenario
def claim_lasts_a_ttl(bench: LedgerFixture) -> None:
    bench.start(B1)
    bench.lease()
    seconds, micros = bench.raw.time()
    left = bench.end_of(B1) - (seconds * 1000 + micros / 1000)
    assert TTL_S * 1000 - 5000 < left <= TTL_S * 1000


@scenario
def claim_answers_the_same_nonce_alike(bench: LedgerFixture) -> None:
    bench.start(B1, B2)
    ask = ("claim", bench.run, B1, "w1", "0123456789abcdef", 30_000)
    first = bench.ledger._call(*ask)
    bench.silence(B1)
    assert bench.ledger._call(*ask) == first
    assert bench.end_of(B1) > 1
    assert bench.states() == {B1: "leased", B2: "pending"}
    other = bench.ledger._call("claim", bench.run, B1, "w1", "fedcba9876543210", 30_000)
    assert other[1] == B2.encode()


@scenario
def fences_never_repeat(bench: LedgerFixture) -> None:
    bench.start(B1)
    fences = []
    for _ in range(3):
        lease = bench.lease(begin=False)
        fences.append(lease.fence)
        bench.ledger.release(lease, "drain")
    assert len(set(fences)) == 3
    assert [int(fence.partition("-")[0]) for fence in fences] == [1, 2, 3]


@scenario
def begin_counts_an_attempt_once(bench: LedgerFixture) -> None:
    bench.start(B1)
    lease = bench.lease(begin=False)
    assert [bench.ledger.begin(lease), bench.ledger.begin(lease)] == [1, 1]
    bench.ledger.fail(lease, "broken")
    again = bench.lease(begin=False)
    assert again.attempts == 1
    assert [bench.ledger.begin(again), bench.ledger.begin(again)] == [2, 2]


# --- fences


@scenario
def a_zombie_is_refused_by_every_verb(bench: LedgerFixture) -> None:
    bench.start(B1)
    zombie = bench.lease(worker="w1")
    bench.silence(B1)
    assert bench.ledger.expire(bench.run) == [(B1, "pending")]
    for name, verb in verbs(bench.ledger).items():
        with unchanged(bench):
            assert not verb(zombie), f"{name} by a zombie, nobody holds it"
    bench.lease(worker="w2")
    for name, verb in verbs(bench.ledger).items():
        with unchanged(bench):
            assert not verb(zombie), f"{name} by a zombie, another holds it"


@scenario
def a_fence_is_compared_whole(bench: LedgerFixture) -> None:
    bench.start(B1, B2)
    lease, other = bench.lease(B1), bench.lease(B2)
    counter, _, nonce = lease.fence.partition("-")
    for fence in ("", counter, f"{counter}-", nonce, f"{lease.fence}x", other.fence):
        stale = Lease(lease.run, lease.batch, fence, lease.worker, 0)
        for name, verb in verbs(bench.ledger).items():
            with unchanged(bench):
                assert not verb(stale), f"{name} with fence {fence!r}"


@scenario
def what_ended_cannot_be_ended_again(bench: LedgerFixture) -> None:
    for end in ("complete", "release", "fail", "kill"):
        bench = LedgerFixture(bench.settings).start(B1)
        lease = bench.lease()
        accepts = verbs(bench.ledger)
        assert accepts[end](lease)
        assert not bench.raw.exists(bench.key("leases"), bench.key("leased"))
        for name, verb in accepts.items():
            with unchanged(bench):
                # A repeated complete is answered, and changes nothing.
                assert verb(lease) == (end == name == "complete"), f"{name} after {end}"


# --- renew


@scenario
def renew_extends_what_is_ours(bench: LedgerFixture) -> None:
    bench.start(B1, B2, B3)
    one, two = bench.lease(B1), bench.lease(B2)
    zombie = Lease(bench.run, B3, "9-dead", "w9", 0)
    bench.silence(B1)
    assert bench.ledger.renew(bench.run, [one, zombie, two], 60) == ("active", [True, False, True])
    assert bench.end_of(B1) == bench.end_of(B2) > 1
    assert bench.ledger.expire(bench.run) == []
    bench.ledger.set_state(bench.run, "paused", "asked")
    assert bench.ledger.renew(bench.run, [one], TTL_S) == ("paused", [True])


# --- keep


@scenario
def keep_keeps_what_came_first(bench: LedgerFixture) -> None:
    bench.start(B1)
    lease = bench.lease()
    rows = entries(0, 1)
    assert bench.ledger.keep(lease, rows)
    assert bench.kept_bytes() == size(rows)
    assert bench.ledger.keep(lease, rows)
    assert bench.ledger.keep(lease, [(rows[0][0], b"other")])
    assert bench.kept_bytes() == size(rows)
    kept = bench.ledger.kept(lease)
    assert kept.generations == {(0, 0): generation(0), (1, 0): generation(1)}
    assert set(kept.verdicts) == {0, 1}
    assert all(verdict.accepted for verdict in kept.verdicts.values())
    assert bench.ledger.status(bench.run).leased[0].kept == 4


@scenario
def keep_is_full_as_a_whole(bench: LedgerFixture) -> None:
    bench.start(B1, B2)
    lease, other = bench.lease(B1), bench.lease(B2)
    half = [("0:0", b"x" * (700 * 1024))]
    small = Ledger(bench.settings.model_copy(update={"keep_budget_mb": 1}))
    assert small.keep(lease, half)
    with unchanged(bench):
        assert not small.keep(lease, [("1:0", b"y"), ("2:0", b"x" * (700 * 1024))])
        assert not small.keep(other, half)
        assert small.keep(lease, half)
    assert small.keep(other, [("1:0", b"y")])
    assert small.complete(lease, ref(B1), {}) == "done"
    assert small.keep(other, half)


@scenario
def kept_work_outlives_every_end_of_a_lease(bench: LedgerFixture) -> None:
    bench.start(B1)
    rows = entries(0, 1)
    assert bench.ledger.keep(bench.lease(), rows)
    ends: list[Callable[[Lease], object]] = [
        lambda lease: bench.ledger.release(lease, "drain"),
        lambda lease: bench.ledger.fail(lease, "broken"),
        lambda lease: (bench.silence(B1), bench.ledger.disown(bench.run, boot(2))),
        lambda lease: (bench.silence(B1), bench.ledger.expire(bench.run)),
        lambda lease: (bench.ledger.kill(lease, "x"), bench.ledger.revive(bench.run, "y")),
    ]
    lease = Lease(bench.run, B1, bench.raw.hget(bench.key("leases"), B1).decode(), "w1", 0)
    for end in ends:
        end(lease)
        assert bench.states() == {B1: "pending"}
        assert bench.kept_bytes() == size(rows)
        lease = bench.lease(boot=boot().text)
        assert set(bench.ledger.kept(lease).verdicts) == {0, 1}


# --- complete


@scenario
def complete_is_the_ack(bench: LedgerFixture) -> None:
    bench.start(B1, B2)
    lease = bench.lease()
    bench.ledger.keep(lease, entries(0, 1))
    assert bench.ledger.complete(lease, ref(B1), {"accepted": 9, "rejected": 1}) == "done"
    with unchanged(bench):
        assert bench.ledger.complete(lease, ref(B1), {"accepted": 9, "rejected": 1}) == "already"
    assert bench.ledger.done(bench.run) == {B1: ref(B1)}
    status = bench.ledger.status(bench.run)
    assert status.counters == {"accepted": 9, "rejected": 1}
    assert (status.kept_bytes, status.leased, status.done, status.pending) == (0, [], 1, 1)
    assert not bench.raw.exists(bench.key(f"kept:{B1}"))
    assert not status.finished
    bench.ledger.complete(bench.lease(), ref(B2), {"accepted": 4})
    status = bench.ledger.status(bench.run)
    assert status.counters == {"accepted": 13, "rejected": 1}
    assert status.finished


@scenario
def complete_never_changes_what_is_done(bench: LedgerFixture) -> None:
    bench.start(B1)
    lease = bench.lease()
    bench.ledger.complete(lease, ref(B1), {"accepted": 9})
    with unchanged(bench), pytest.raises(LedgerError, match="dflashq verify"):
        bench.ledger.complete(lease, ref(B1, "b" * 64), {"accepted": 9})


@scenario
def complete_works_on_a_paused_run(bench: LedgerFixture) -> None:
    bench.start(B1)
    lease = bench.lease()
    bench.ledger.set_state(bench.run, "paused", "asked")
    assert bench.ledger.keep(lease, entries(0))
    assert bench.ledger.complete(lease, ref(B1), {"accepted": 1}) == "done"
    assert bench.states() == {B1: "done"}


@scenario
def complete_works_on_a_cancelled_run(bench: LedgerFixture) -> None:
    bench.start(B1, B2)
    lease = bench.lease()
    bench.ledger.keep(lease, entries(0))
    bench.ledger.set_state(bench.run, "cancelled", "asked")
    assert not bench.ledger.status(bench.run).finished
    assert bench.ledger.complete(lease, ref(B1), {"accepted": 1}) == "done"
    assert bench.states() == {B1: "done", B2: "pending"}
    assert bench.kept_bytes() == 0
    assert bench.ledger.status(bench.run).finished


# --- attempts


@scenario
def attempts_without_progress_end_in_death(bench: LedgerFixture) -> None:
    bench.start(B1)
    limit = bench.settings.attempts
    outcomes = [bench.ledger.fail(bench.lease(), f"broken {n}") for n in range(limit)]
    assert outcomes == ["pending"] * (limit - 1) + ["dead"]
    status = bench.ledger.status(bench.run)
    assert status.dead == {B1: f"broken {limit - 1}"}
    assert status.finished
    assert bench.ledger.claim(bench.run, B1, "w1", TTL_S).why == "idle"
    story = bench.ledger.story(bench.run, B1)
    assert [row["what"] for row in story] == [f"broken {n}" for n in range(limit)]
    assert story[0]["at"] <= story[-1]["at"]
    assert abs(status.now_ms - story[-1]["at"]) < 60_000


@scenario
def a_failure_before_begin_is_an_attempt_too(bench: LedgerFixture) -> None:
    bench.start(B1)
    limit = bench.settings.attempts
    outcomes = [bench.ledger.fail(bench.lease(begin=False), "unreadable") for _ in range(limit)]
    assert outcomes == ["pending"] * (limit - 1) + ["dead"]


@scenario
def silence_and_rebirth_spend_attempts(bench: LedgerFixture) -> None:
    bench.start(B1)
    for number in range(bench.settings.attempts - 1):
        bench.lease(boot=boot(number).text)
        bench.silence(B1)
        if number % 2:
            assert bench.ledger.expire(bench.run) == [(B1, "pending")]
        else:
            assert bench.ledger.disown(bench.run, boot(number + 1)) == [B1]
    bench.lease(boot=boot(9).text)
    bench.silence(B1)
    assert bench.ledger.expire(bench.run) == [(B1, "dead")]
    who = "worker w1 (boot 00000009 on host 5e6f7a8b)"
    assert bench.ledger.status(bench.run).dead[B1] == f"{who} fell silent past its lease"


@scenario
def an_attempt_that_kept_something_is_not_spent(bench: LedgerFixture) -> None:
    bench.start(B1)
    for number in range(bench.settings.attempts * 2):
        lease = bench.lease()
        assert bench.ledger.keep(lease, entries(number))
        assert bench.ledger.fail(lease, "broken") == "pending"
    limit = bench.settings.attempts
    outcomes = []
    for _ in range(limit):
        lease = bench.lease()
        assert bench.ledger.keep(lease, entries(0))  # nothing new: no progress
        outcomes.append(bench.ledger.fail(lease, "broken"))
    assert outcomes == ["pending"] * (limit - 1) + ["dead"]


@scenario
def release_spends_nothing(bench: LedgerFixture) -> None:
    bench.start(B1)
    limit = bench.settings.attempts
    for _ in range(limit * 2):
        assert bench.ledger.release(bench.lease(), "drain")
        assert bench.ledger.release(bench.lease(begin=False), "drain")
    assert bench.states() == {B1: "pending"}
    assert bench.ledger.story(bench.run, B1)[-1]["what"] == "drain"
    # What was spent before stays spent: an unbegun release refunds nothing.
    for _ in range(limit - 1):
        assert bench.ledger.fail(bench.lease(), "broken") == "pending"
        bench.ledger.release(bench.lease(begin=False), "drain")
    assert bench.ledger.fail(bench.lease(), "broken") == "dead"


@scenario
def kill_is_death_at_once_and_revive_gives_all_attempts(bench: LedgerFixture) -> None:
    bench.start(B1, B2)
    for _ in range(bench.settings.attempts - 1):
        bench.ledger.fail(bench.lease(B1), "broken")
    assert bench.ledger.fail(bench.lease(B1), "broken") == "dead"
    assert bench.ledger.kill(bench.lease(B2), "conflict: not ours")
    assert bench.ledger.status(bench.run).dead == {B1: "broken", B2: "conflict: not ours"}
    assert bench.ledger.revive(bench.run, "asked") == [B1, B2]
    assert bench.ledger.revive(bench.run, "asked") == []
    assert bench.states() == {B1: "pending", B2: "pending"}
    assert bench.ledger.pending(bench.run) == [B1, B2]
    for _ in range(bench.settings.attempts - 1):
        assert bench.ledger.fail(bench.lease(B1), "broken") == "pending"
    assert bench.ledger.story(bench.run, B2)[-1]["what"] == "asked"


@scenario
def a_story_keeps_its_end(bench: LedgerFixture) -> None:
    bench.start(B1)
    for number in range(25):
        bench.ledger.release(bench.lease(), f"drain {number}")
    told = [row["what"] for row in bench.ledger.story(bench.run, B1)]
    assert told == [f"drain {number}" for number in range(5, 25)]


# --- housekeeping


@scenario
def disown_takes_only_what_an_earlier_boot_here_let_run_out(bench: LedgerFixture) -> None:
    """A twin, on this host or another, takes nothing from a holder that lives."""
    here, twin = boot(5), boot(7)
    others = {
        "batch-000002": boot(3, name="w2"),
        "batch-000003": boot(3, host="another-host"),
        "batch-000004": boot(7),
        "batch-000005": boot(8),
        "batch-000006": None,  # of a worker that says no boot
    }
    bench.start(B1, *others)
    bench.lease(B1, boot=here.text)
    for batch, its in others.items():
        bench.lease(batch, its.name if its else "w1", boot=its.text if its else "")
        bench.silence(batch)
    with unchanged(bench):
        for number in range(10):
            assert bench.ledger.disown(bench.run, boot(100 + number, host="a-third")) == []
        for batch in ("batch-000004", "batch-000005"):
            assert bench.states()[batch] == "leased"
        assert bench.ledger.disown(bench.run, twin) == []
    bench.silence(B1)
    assert bench.ledger.disown(bench.run, twin) == [B1]
    with unchanged(bench):
        assert bench.ledger.disown(bench.run, twin) == []
    assert bench.states() == {B1: "pending", **dict.fromkeys(others, "leased")}
    assert bench.ledger.story(bench.run, B1)[-1]["what"] == (
        "worker w1 (boot 00000005 on host 5e6f7a8b) fell silent past its lease and was started anew"
    )


@scenario
def a_lease_says_whose_boot_holds_it_and_no_more_than_that(bench: LedgerFixture) -> None:
    bench.start(B1)
    lease = bench.lease(boot=boot().text)
    field = f"{B1}:boot"
    assert bench.raw.hget(bench.key("leases"), field).decode() == boot().text
    bench.ledger.release(lease, "drain")
    assert bench.raw.hgetall(bench.key("leases")) == {}
    bench.lease(boot=boot(2).text)
    assert bench.raw.hget(bench.key("leases"), field).decode() == boot(2).text


@scenario
def expire_takes_only_what_is_past_its_end(bench: LedgerFixture) -> None:
    bench.start(B1, B2)
    bench.lease(B1), bench.lease(B2)
    with unchanged(bench):
        assert bench.ledger.expire(bench.run) == []
    bench.silence(B2)
    assert bench.ledger.expire(bench.run) == [(B2, "pending")]
    with unchanged(bench):
        assert bench.ledger.expire(bench.run) == []
    assert bench.states() == {B1: "leased", B2: "pending"}


@scenario
def a_name_is_that_of_one_boot(bench: LedgerFixture) -> None:
    """Until that boot is silent past its lease, or known to be gone."""
    ledger, name = bench.ledger, bench.run  # a name of this test alone
    first, second = boot(1, name=name).text, boot(2, name=name).text
    assert ledger.announce(name, {"boot": first, "closed": [], "rate": 1.5})
    for gone in ("", "another"):
        assert not ledger.announce(name, {"boot": second}, gone=gone)
    assert not ledger.renew_name(name, second)
    assert not ledger.retire(name, second)
    row = ledger.worker(name)
    assert row is not None
    assert (row["boot"], row["closed"], row["rate"]) == (first, [], 1.5)
    # Its own boot goes on.
    _unheard(bench, row, 20.0)
    assert ledger.renew_name(name, first)
    renewed = ledger.worker(name)
    assert renewed is not None
    assert renewed["seen_ms"] >= row["seen_ms"]
    assert renewed | {"seen_ms": 0} == row | {"seen_ms": 0}
    assert ledger.announce(name, {"boot": first, "rate": 2.5})
    # Silent, but within the lease; then past it.
    _unheard(bench, renewed, bench.settings.lease_ttl_s - 10)
    assert not ledger.announce(name, {"boot": second})
    _unheard(bench, renewed, bench.settings.lease_ttl_s + 1)
    assert ledger.renew_name(name, second)
    assert (ledger.worker(name) or {})["boot"] == first, "only a whole row takes a name"
    assert ledger.announce(name, {"boot": second})
    assert not ledger.announce(name, {"boot": first})
    assert not ledger.renew_name(name, first)
    assert not ledger.retire(name, first)
    # Known to be gone: at once, for the first one who says so.
    assert ledger.announce(name, {"boot": first}, gone=second)
    assert not ledger.announce(name, {"boot": boot(3, name=name).text}, gone=second)
    assert ledger.retire(name, first)
    assert not ledger.retire(name, first)
    assert ledger.renew_name(name, second)
    assert ledger.worker(name) is None, "a renewal makes no row"


@scenario
def a_row_without_a_boot_is_not_known_to_be_gone(bench: LedgerFixture) -> None:
    """Workers of an earlier version announce none."""
    ledger, name = bench.ledger, bench.run
    assert ledger.announce(name, {"engine": "ready"})
    assert not ledger.announce(name, {"boot": boot(name=name).text}, gone="")
    assert ledger.announce(name, {"engine": "down"})
    assert ledger.retire(name)


@scenario
def cancel_is_for_good_and_drops_kept_work(bench: LedgerFixture) -> None:
    bench.start(B1, B2, B3)
    for batch in (B1, B2, B3):
        lease = bench.lease(batch)
        assert bench.ledger.keep(lease, entries(0))
    bench.ledger.release(Lease(bench.run, B1, _fence(bench, B1), "w1", 0), "drain")
    bench.ledger.kill(Lease(bench.run, B2, _fence(bench, B2), "w1", 0), "conflict")
    bench.ledger.set_state(bench.run, "paused", "asked")
    assert bench.kept_bytes() == 3 * size(entries(0))
    assert bench.ledger.set_state(bench.run, "cancelled", "asked") == "cancelled"
    assert bench.kept_bytes() == size(entries(0))  # of the leased batch, until its lease ends
    for state in ("active", "paused", "cancelled"):
        with unchanged(bench):
            assert bench.ledger.set_state(bench.run, state, "again") == "cancelled"
    assert bench.ledger.status(bench.run).reason == "asked"


@scenario
def every_end_of_a_lease_drops_the_kept_work_of_a_cancelled_run(bench: LedgerFixture) -> None:
    ends: list[Callable[[LedgerFixture, Lease], object]] = [
        lambda b, lease: b.ledger.release(lease, "drain"),
        lambda b, lease: b.ledger.fail(lease, "broken"),
        lambda b, lease: b.ledger.kill(lease, "conflict"),
        lambda b, lease: (b.silence(B1), b.ledger.disown(b.run, boot(2))),
        lambda b, lease: (b.silence(B1), b.ledger.expire(b.run)),
    ]
    for end in ends:
        bench = LedgerFixture(bench.settings).start(B1)
        lease = bench.lease(boot=boot().text)
        assert bench.ledger.keep(lease, entries(0))
        bench.ledger.set_state(bench.run, "cancelled", "asked")
        end(bench, lease)
        assert bench.kept_bytes() == 0
        assert not bench.raw.exists(bench.key(f"kept:{B1}"))
        assert bench.ledger.status(bench.run).finished


@scenario
def pause_is_taken_back(bench: LedgerFixture) -> None:
    bench.start(B1)
    assert bench.ledger.state(bench.run) == "active"
    assert bench.ledger.set_state(bench.run, "paused", "breaker") == "paused"
    assert bench.ledger.state(bench.run) == "paused"
    assert bench.ledger.status(bench.run).reason == "breaker"
    assert bench.ledger.set_state(bench.run, "active", "") == "active"
    assert bench.lease().batch == B1


@scenario
def adopt_enters_what_nobody_works_on(bench: LedgerFixture) -> None:
    bench.start(B1, B2, B3)
    lease = bench.lease(B1)
    bench.ledger.keep(lease, entries(0))
    with unchanged(bench):
        assert not _adopt(bench, B1)
    bench.ledger.release(lease, "drain")
    bench.ledger.kill(bench.lease(B2), "conflict")
    for batch in (B1, B2, "batch-000004"):
        assert _adopt(bench, batch)
        with unchanged(bench):
            assert not _adopt(bench, batch)
    assert bench.states() == {B1: "done", B2: "done", B3: "pending", "batch-000004": "done"}
    status = bench.ledger.status(bench.run)
    assert (status.counters, status.kept_bytes, status.dead) == ({"accepted": 6}, 0, {})


@scenario
def forget_takes_back_what_is_done_with_that_object(bench: LedgerFixture) -> None:
    bench.start(B1, B2)
    bench.ledger.complete(bench.lease(B1), ref(B1), {"accepted": 3, "rejected": 1})
    with unchanged(bench):
        assert not bench.ledger.forget(bench.run, B1, ref(B1, "b" * 64), {"accepted": 3})
        assert not bench.ledger.forget(bench.run, B2, ref(B2), {"accepted": 3})
    assert bench.ledger.forget(bench.run, B1, ref(B1), {"accepted": 3, "rejected": 1})
    with unchanged(bench):
        assert not bench.ledger.forget(bench.run, B1, ref(B1), {"accepted": 3, "rejected": 1})
    assert bench.ledger.pending(bench.run) == [B1, B2]
    status = bench.ledger.status(bench.run)
    assert (status.done, status.counters) == (0, {"accepted": 0, "rejected": 0})
    assert "gone" in bench.ledger.story(bench.run, B1)[-1]["what"]
    assert bench.ledger.complete(bench.lease(B1), ref(B1), {"accepted": 4}) == "done"
    assert bench.ledger.status(bench.run).counters["accepted"] == 4


@scenario
def the_others_wait_for_the_canary(bench: LedgerFixture) -> None:
    bench.ledger.register(bench.run, "f" * 64, "q", 10, 3, B1)
    bench.ledger.add(bench.run, [B1, B2, B3])
    assert bench.ledger.claimable(bench.run) == [B1]
    canary = bench.ledger.claim(bench.run, B2, "w1", TTL_S).lease
    assert canary is not None
    assert canary.batch == B1
    for hinted in ("", B2):
        assert bench.ledger.claim(bench.run, hinted, "w2", TTL_S).why == "canary"
    assert bench.ledger.claimable(bench.run) == []
    bench.ledger.release_canary(bench.run)
    assert bench.ledger.tolerated(bench.run) == 0.0
    assert bench.ledger.claimable(bench.run) == [B2, B3]
    assert bench.lease().batch == B2
    bench.ledger.release_canary(bench.run, tolerated=0.5)
    bench.ledger.release_canary(bench.run)
    assert bench.ledger.tolerated(bench.run) == 0.5


def _canary(bench: LedgerFixture) -> str:
    """Where the status says that the canary is."""
    return bench.ledger.status(bench.run).canary


@scenario
def the_status_says_where_the_canary_is(bench: LedgerFixture) -> None:
    bench.ledger.register(bench.run, "f" * 64, "q", 10, 2, B1)
    assert _canary(bench) == "lost"
    bench.ledger.add(bench.run, [B1, B2])
    assert _canary(bench) == "pending"
    lease = bench.lease()
    assert _canary(bench) == "leased"
    bench.ledger.kill(lease, "conflict")
    assert _canary(bench) == "dead"
    bench.ledger.revive(bench.run, "again")
    bench.ledger.complete(bench.lease(), ref(B1), {"accepted": 1})
    assert _canary(bench) == "done"
    bench.ledger.release_canary(bench.run)
    assert _canary(bench) == ""


@scenario
def a_run_is_paused_only_where_its_canary_was_seen(bench: LedgerFixture) -> None:
    def pauses(seen: str) -> bool:
        return bench.ledger.pause_at_canary(bench.run, seen, "the canary")

    bench.ledger.register(bench.run, "f" * 64, "q", 10, 2, B1)
    bench.ledger.add(bench.run, [B1, B2])
    with unchanged(bench):
        assert not any(pauses(seen) for seen in ("done", "dead", "lost"))  # it is pending
    lease = bench.lease()
    with unchanged(bench):
        assert not any(pauses(seen) for seen in ("done", "dead", "lost"))  # it is at work
    bench.ledger.kill(lease, "conflict")
    with unchanged(bench):
        assert not pauses("lost")
        assert not pauses("done")
    assert pauses("dead")
    status = bench.ledger.status(bench.run)
    assert (status.state, status.reason) == ("paused", "the canary")
    with unchanged(bench):
        assert not bench.ledger.pause_at_canary(bench.run, "dead", "again")
    bench.ledger.set_state(bench.run, "active", "")
    bench.ledger.revive(bench.run, "again")
    bench.ledger.complete(bench.lease(), ref(B1), {"accepted": 1})
    with unchanged(bench):
        assert not pauses("dead")
    assert pauses("done")
    bench.ledger.set_state(bench.run, "active", "")
    bench.raw.hdel(bench.key("done"), B1)
    assert pauses("lost")
    bench.ledger.set_state(bench.run, "active", "")
    bench.ledger.release_canary(bench.run)
    with unchanged(bench):
        assert not pauses("lost")
    bench.ledger.set_state(bench.run, "cancelled", "")
    with unchanged(bench):
        assert not pauses("lost")


@scenario
def a_run_without_a_canary_is_not_paused_at_it(bench: LedgerFixture) -> None:
    assert not bench.ledger.pause_at_canary(bench.run, "lost", "there is no such run")
    bench.start(B1)
    bench.raw.hdel(bench.key("run"), "waits_for")  # as a ledger of an older version
    with unchanged(bench):
        assert not bench.ledger.pause_at_canary(bench.run, "lost", "it waits for nothing")


@scenario
def revive_takes_only_those_asked_for(bench: LedgerFixture) -> None:
    bench.start(B1, B2, B3)
    for batch in (B1, B2):
        assert bench.ledger.kill(bench.lease(batch), "conflict")
    with unchanged(bench):
        assert bench.ledger.revive(bench.run, "again", [B3]) == []
    assert bench.ledger.revive(bench.run, "again", [B2]) == [B2]
    assert bench.states() == {B1: "dead", B2: "pending", B3: "pending"}


@scenario
def a_canary_of_nothing_makes_no_run(bench: LedgerFixture) -> None:
    bench.ledger.release_canary(bench.run, tolerated=1.0)
    assert bench.ledger.state(bench.run) == "unknown"
    assert bench.raw.exists(bench.key("run")) == 0


def _unheard(bench: LedgerFixture, row: dict[str, Any], seconds: float) -> None:
    """The row as it were had its worker not been heard of for so long."""
    seen_ms = int((bench.ledger.now_s() - seconds) * 1000)
    first = {"seen_ms": seen_ms}
    bench.raw.hset(keys.WORKERS, bench.run, json.dumps(first | row | first))


def _adopt(bench: LedgerFixture, batch: str) -> bool:
    return bench.ledger.adopt(bench.run, batch, ref(batch), {"accepted": 2})


def _fence(bench: LedgerFixture, batch: str) -> str:
    return str(bench.raw.hget(bench.key("leases"), batch).decode())
