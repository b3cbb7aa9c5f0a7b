"""The keys of a stage behind generate are its own; those of generate are what they always were."""

from __future__ import annotations

import pytest

from dflashq.config import Settings
from dflashq.core import keys, stage_spec
from dflashq.core.errors import LeaseLostError
from dflashq.core.stage_spec import GENERATE, ROWS, StageSpec
from dflashq.ledger import Hints, Lease, LeaseHeartbeat
from dflashq.operations.housekeeping.sweep import Sweeper
from tests.support.ledger_fixture import B1, B2, TTL_S, LedgerFixture, ref
from tests.support.wait import wait_until

STAGE = ROWS.name


@pytest.fixture
def bench(settings: Settings) -> LedgerFixture:
    """A run that generates, and whose rows were asked for."""
    made = LedgerFixture(settings).start(B1, B2)
    made.ledger.register(made.run, "f" * 64, ROWS.queue, 10, 2, stage=STAGE)
    made.ledger.add(made.run, [B1], STAGE)
    return made


def lease(bench: LedgerFixture) -> Lease:
    """The oldest batch of the stage, leased."""
    got = bench.ledger.claim(bench.run, "", "w1", TTL_S, stage=STAGE).lease
    assert got is not None
    return got


def test_every_verb_works_on_the_keys_of_its_stage(bench: LedgerFixture) -> None:
    parts = f"{keys.NAMESPACE}:{{{bench.run}}}:"
    generate = {k: v for k, v in bench.picture().items() if not k.startswith(f"{parts}rows:")}
    assert set(generate) == {f"{parts}run", f"{parts}pending"}
    mine = lease(bench)
    assert (mine.stage, mine.batch) == (STAGE, B1)
    assert bench.ledger.begin(mine) == 1
    assert bench.ledger.keep(mine, [("0:line", b"kept")])
    assert bench.ledger.kept_entries(mine) == {"0:line": b"kept"}
    assert bench.ledger.renew(bench.run, [mine], TTL_S) == ("active", [True])
    assert f"{parts}rows:kept:{B1}" in bench.picture()
    assert bench.ledger.fail(mine, "broken") == "pending"
    again = lease(bench)
    assert bench.ledger.release(again, "drain")
    with pytest.raises(LeaseLostError):
        bench.ledger.begin(again)
    last = lease(bench)
    assert bench.ledger.complete(last, ref(B1), {"rows": 3}) == "done"
    assert bench.ledger.story(bench.run, B1, STAGE)[0]["what"] == "broken"
    now = bench.picture()
    assert {k: v for k, v in now.items() if not k.startswith(f"{parts}rows:")} == generate
    assert f"{parts}rows:kept:{B1}" not in now
    assert now[f"{parts}rows:counters"] == {b"rows": b"3"}


def test_a_lease_of_a_stage_is_renewed_beside_one_of_generate(bench: LedgerFixture) -> None:
    """Both are of one batch of one run; the end of one must not be taken for the other's."""
    lost: list[str] = []
    mine, other = lease(bench), bench.lease(B1)
    heartbeat = LeaseHeartbeat(bench.ledger, 0.5)
    heartbeat.hold(mine, lambda why: lost.append(f"rows {why}"))
    heartbeat.hold(other, lambda why: lost.append(f"generate {why}"))
    before = bench.raw.zscore(keys.ledger_key(bench.run, "leased", STAGE), B1)
    heartbeat.start()
    try:
        wait_until(
            lambda: bench.raw.zscore(keys.ledger_key(bench.run, "leased", STAGE), B1) != before
        )
        bench.ledger.set_state(bench.run, "paused", "")
        wait_until(lambda: bool(lost))
    finally:
        heartbeat.stop()
    # A pause stops the engines; rows of what is committed may be written all the same.
    assert lost == ["generate paused"]


def test_the_sweep_adds_what_was_committed_takes_back_and_hints(
    bench: LedgerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("dflashq.operations.housekeeping.sweep.time.monotonic", lambda: now[0])
    hints = Hints(bench.settings)
    sweeper = Sweeper(bench.ledger, hints, TTL_S)
    lease(bench)
    bench.raw.zadd(keys.ledger_key(bench.run, "leased", STAGE), {B1: 1})
    for batch in (B1, B2):
        bench.ledger.complete(bench.lease(batch), ref(batch), {"accepted": 1})
    assert sweeper.sweep(1) is not None
    assert bench.ledger.pending(bench.run, stage=STAGE) == [B2]
    assert hints.waiting(ROWS.queue) == 1
    now[0] += TTL_S
    bench.raw.delete(keys.SWEEP_LOCK)
    swept = sweeper.sweep(1)
    assert swept is not None
    assert swept.expired == [f"{bench.run}/rows/{B1}"]
    assert bench.ledger.pending(bench.run, stage=STAGE) == [B1, B2]
    assert hints.waiting(ROWS.queue) == 2
    assert hints.waiting("q") == 0


def test_a_stage_must_not_take_a_name_or_queue_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stage_spec, "STAGES", {GENERATE.name: GENERATE, ROWS.name: ROWS})
    for wrong in (
        StageSpec("rows", "x", "x", "x", ".x", "generate", False),
        StageSpec("x", "x", "rows", "x", ".x", "generate", False),
        StageSpec("x", "x", "x", "x", ".x", "absent", False),
        StageSpec("kept", "x", "x", "x", ".x", "generate", False),
    ):
        with pytest.raises(ValueError, match="stage"):
            stage_spec.register(wrong)
    stage_spec.register(ROWS)
    assert stage_spec.followers() == [ROWS]


def test_equal_counts_of_different_batches_hide_nothing(bench: LedgerFixture) -> None:
    """After a ledger was lost a stage may have what its upstream has not, and the reverse."""
    bench.ledger.complete(bench.lease(B2), ref(B2), {"accepted": 1})
    assert Sweeper(bench.ledger, Hints(bench.settings), TTL_S).sweep(1) is not None
    assert bench.ledger.pending(bench.run, stage=STAGE) == [B1, B2]
