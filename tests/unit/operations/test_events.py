"""Sentences from differences, estimates from lengths and speeds: pure functions."""

from __future__ import annotations

from dflashq.core import codec
from dflashq.core.estimates.forecast import MeanLength, forecast, lengths, mixed_mean
from dflashq.operations.monitoring.domain_counts import spread
from dflashq.operations.monitoring.events import (
    fleet_events,
    fleet_snapshot,
    run_events,
    run_snapshot,
)
from dflashq.operations.monitoring.sample_cache import read_text
from tests.support.sample_rows import sample


def snapshot(state: str = "active", finished: bool = False, **batches: str) -> dict[str, object]:
    named = {name.replace("_", "-"): what for name, what in batches.items()}
    return run_snapshot(state, "", "", finished, named)


def test_batches_are_told_one_by_one_or_summed_up() -> None:
    before = snapshot(batch_1="leased", batch_2="leased")
    now = snapshot(batch_1="done", batch_2="dead")
    events = run_events("r", before, now, 5, {"batch-2": "it broke"})
    assert [event["text"] for event in events] == [
        "batch-1 is done and on S3.",
        "batch-2 is dead: it broke",
    ]
    many = snapshot(**{f"batch_{n:02d}": "done" for n in range(40)})
    events = run_events("r", snapshot(), many, 5, {})
    assert [event["text"] for event in events] == [
        "40 batches are done and on S3: batch-00 to batch-39."
    ]


def test_a_lease_that_ends_and_a_revival() -> None:
    events = run_events("r", snapshot(batch_1="leased", batch_2="dead"), snapshot(), 5, {})
    assert [event["kind"] for event in events] == ["batch_revived", "batch_returned"]


def test_a_canary_that_is_left_out_has_not_passed() -> None:
    before = run_snapshot("paused", "", "batch-0", False, {"batch-0": "dead"})
    now = run_snapshot("active", "", "", False, {"batch-0": "dead"})
    events = run_events("r", before, now, 5, {"batch-0": "it broke"})
    assert [event["kind"] for event in events] == ["canary_skipped", "run_resumed"]
    assert events[0]["text"] == "The run goes on without its canary (batch-0), which is dead."
    events = run_events("r", before, run_snapshot("active", "", "", False, {}), 5, {})
    assert [event["kind"] for event in events] == ["batch_revived", "canary_passed", "run_resumed"]


def worker(**changes: object) -> dict[str, object]:
    row = {"silent_s": 1, "engine": "ready", "restarts": 0, "closed": [], "boot": "h:7:a"}
    return row | changes


def test_workers_come_fall_silent_come_back_and_leave() -> None:
    states = [
        {"w": worker()},
        {"w": worker(silent_s=40)},
        {"w": worker(restarts=1)},
        {"w": worker(restarts=1, engine="down")},
        {"w": worker(boot="h:8:b")},
        {},
    ]
    looks = [fleet_snapshot(rows) for rows in states]
    kinds = [
        [event["kind"] for event in fleet_events(before, now, 5)]
        for before, now in zip([{}, *looks], looks, strict=False)
    ]
    assert kinds == [
        ["worker_joined"],
        ["worker_silent"],
        ["worker_back", "engine_restarted"],
        ["engine_down"],
        ["worker_back"],
        ["worker_left"],
    ]


def test_a_fleet_that_starts_at_once_is_one_line() -> None:
    rows = {f"w{n:03d}": worker() for n in range(500)}
    events = fleet_events({}, fleet_snapshot(rows), 5)
    assert [event["text"] for event in events] == ["500 workers joined: w000 to w499."]


def test_an_estimate_has_a_range_that_narrows() -> None:
    assert forecast(100, None, [50.0]) is None
    assert forecast(100, lengths([(10, 1000)]), [0.0]) is None
    early = forecast(100, lengths([(10, 1000)]), [50.0])
    assert early is not None
    assert early.early
    assert early.left_s == 200.0
    known = lengths([(10, 1000 + 10 * n) for n in range(-5, 6)])
    later = forecast(100, known, [48.0, 50.0, 52.0] * 10)
    assert later is not None
    assert not later.early
    assert later.low_s < later.left_s < later.high_s
    assert later.high_s - later.low_s < (early.high_s - early.low_s) / 5


def test_the_mix_of_what_is_left_counts() -> None:
    assert mixed_mean({"math": 3.0, "chat": 1.0}, {"math": 1000.0, "chat": 200.0}, 500.0) == 800.0
    assert mixed_mean({}, {}, 500.0) == 500.0
    longer = forecast(100, MeanLength(500.0, 5.0, 20), [50.0] * 20, 800.0)
    assert longer is not None
    assert longer.left_s == 1600.0


def test_a_spread_has_both_ends() -> None:
    names = [str(n) for n in range(1000)]
    chosen = spread(names, 16)
    assert (chosen[0], chosen[-1], len(set(chosen))) == ("0", "999", 16)
    assert spread(names[:5], 16) == names[:5]


def test_a_sample_is_read_without_its_ids_whatever_it_says() -> None:
    row = sample(3)
    row["messages"][1]["content"] = 'say ,"generations":[ and ]} and \\"'
    row["reason"] = "stub"
    text = read_text(codec.encode_line(row))
    assert text["messages"] == row["messages"]
    assert text["reason"] == "stub"
    assert text["latencies"] == [1.5]
    assert "generations" not in text
    assert text["attempt"] == row["attempt"]
