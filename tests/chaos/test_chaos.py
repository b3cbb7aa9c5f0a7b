"""A short chaos, and the proof that its report would see what it must see."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests.chaos.observed_leases import Loss, ObservedLeases
from tests.chaos.prompts import REFUSALS, expected_reasons, refusal_of
from tests.chaos.report import (
    Outcome,
    check_rejections,
    find_regenerated,
    note_dead,
    recovery,
)
from tests.chaos.run import run_chaos
from tests.chaos.twins import taken_from
from tests.support.fault_fleet import FaultFleet


def test_a_request_after_its_generation_was_kept_is_counted(tmp_path: Path) -> None:
    stats = tmp_path / "stats.jsonl"
    rows = [
        ("dfq-1", "received", "a", 10.0),
        ("dfq-1", "answered", "a", 11.0),
        ("dfq-2", "received", "a", 12.1),  # it was on its way
        ("dfq-3", "received", "a", 13.0),  # again
        ("dfq-4", "received", "b", 10.0),
        ("dfq-5", "received", "b", 20.0),  # never seen kept, but its batch was done
        ("dfq-6", "received", "c", 30.0),  # neither: an answer that died before it was kept
        ("probe", "received", "a", 40.0),
    ]
    lines = [
        json.dumps({"rid": r, "event": e, "prompt": p, "t": t, "pid": 1}) for r, e, p, t in rows
    ]
    stats.write_text("\n".join(lines) + '\n{"torn')
    observed = ObservedLeases(kept={"a": 12.0}, done={("run", "batch-000000"): 15.0})
    batch_of = {("run", "b"): "batch-000000", ("run", "c"): "batch-000001"}
    outcome = Outcome()
    find_regenerated(stats, observed, batch_of, outcome)
    assert outcome.regenerated == 2
    assert not outcome.clean
    assert "1.0 s after it was kept" in outcome.again[0]


def test_recovery_counts_from_the_fault_to_the_next_holder() -> None:
    observed = ObservedLeases(
        losses=[Loss("r", f"b{n}", "f", 100.0, 103.0, 104.0 + n) for n in range(3)]
    )
    observed.losses.append(Loss("r", "b9", "f", 100.0))
    lines = recovery(observed)
    assert lines[0] == "4 leases taken away, 1 for good"
    assert lines[1] == "free again after 3.0 s (median), 3.0 s (max)"
    assert lines[2] == "at work again after 5.0 s (median), 6.0 s (max)"


@pytest.mark.parametrize(
    ("reasons", "wrong"),
    [
        ({7: "engine_error"}, ""),
        ({7: "engine_error", 3: "engine_crash"}, ""),
        ({7: "engine_crash"}, ""),
        ({}, "not rejected: {7: 'engine_error'}"),
        ({7: "refused_input"}, "wrongly rejected: {7: 'refused_input'}"),
        ({7: "engine_error", 3: "engine_error"}, "wrongly rejected: {3: 'engine_error'}"),
    ],
)
def test_exactly_the_refused_prompts_must_be_rejected(reasons: dict[int, str], wrong: str) -> None:
    sentence = check_rejections("run", reasons, {7: "engine_error"})
    assert wrong in sentence
    assert bool(sentence) == bool(wrong)


def test_every_way_of_refusing_is_in_every_run() -> None:
    expected = expected_reasons(400, refusing=True)
    assert {refusal_of(index) for index in expected} == set(REFUSALS)
    assert len(expected) == 10
    assert expected_reasons(400, refusing=False) == {}


class DeadBatch:
    """A ledger of one run with one dead batch."""

    def __init__(self, *story: str) -> None:
        self._story = story

    def status(self, _run: str) -> SimpleNamespace:
        return SimpleNamespace(dead={"batch-000000": self._story[-1]})

    def story(self, _run: str, _batch: str) -> list[dict[str, str]]:
        return [{"what": sentence} for sentence in self._story]


SILENT = "worker w0@test fell silent past its lease"


@pytest.mark.parametrize(
    ("story", "is_clean"),
    [
        ((SILENT, "the worker drains", SILENT, "worker w0@test died and came back"), True),
        ((SILENT, SILENT), False),
        ((SILENT, SILENT, SILENT, "the engine failed 6 times on prompt 7"), False),
        (("the engine failed 6 times on prompt 7", SILENT, SILENT), False),
    ],
)
def test_only_kills_may_leave_a_batch_dead(story: tuple[str, ...], is_clean: bool) -> None:
    fleet = SimpleNamespace(ledger=DeadBatch(*story), settings=SimpleNamespace(attempts=3))
    outcome = Outcome()
    note_dead(cast("FaultFleet", fleet), "run", outcome)
    assert outcome.clean is is_clean
    assert outcome.dead == [f"run/batch-000000: {story[-1]}"]


@pytest.mark.fleet
def test_a_short_chaos_loses_doubles_and_repeats_nothing(tmp_path: Path) -> None:
    outcome = run_chaos(tmp_path, minutes=0.5, kills=0, seed=7, workers=3)
    assert outcome.clean, (outcome.problems, outcome.again)
    assert outcome.prompts >= 400


def test_a_lease_that_a_worker_gave_back_itself_cost_no_twin() -> None:
    silent = "worker w0@test (boot ab on host x) fell silent past its lease"
    assert taken_from("w0@test", silent)
    assert taken_from("w0@test", f"{silent} and was started anew")
    assert not taken_from("w1@test", silent)
    assert not taken_from("w0@test", "worker w0@test handed it back (index 7 failed here)")
