"""Insights: numbers and the sentence, from made-up ledgers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dflashq.ledger.models import BatchStatus, RunStatus
from dflashq.operations.monitoring.insights import run_view
from dflashq.operations.monitoring.worker_view import WorkerView, worker_views

ROW = {
    "host": "h",
    "engine": "ready",
    "profile": "p",
    "gpu": "0",
    "tokens_per_s": 1700.0,
    "output_tokens": 90_000,
    "in_flight": 70,
    "limit": 80,
    "closed": [],
    "batches": ["r/batch-000012"],
    "silent_s": 2,
}


def status(**changes: Any) -> RunStatus:
    made = RunStatus(
        name="r",
        state="active",
        reason="",
        fingerprint="f" * 64,
        queue="generate.m",
        prompts=915_000,
        batches=915,
        created_ms=1_000_000,
        now_ms=4_600_000,
        pending=902,
        leased=[BatchStatus("batch-000012", "leased", worker="w0", attempts=1, kept=30)],
        done=12,
        dead={},
        kept_bytes=5,
        counters={
            "prompts": 12_000,
            "accepted": 11_000,
            "rejected_empty": 200,
            "rejected_truncated": 800,
            "rejected_looping": 0,
            "output_tokens": 12_000_000,
        },
    )
    return replace(made, **changes)


def workers(*changes: dict[str, Any]) -> list[WorkerView]:
    return worker_views({f"w{n}": {**ROW, **change} for n, change in enumerate(changes)})


def test_the_numbers_of_a_run() -> None:
    view = run_view(status(), workers({}, {}, {"tokens_per_s": 1810.0}))
    assert (view.total, view.done, view.leased, view.pending, view.dead) == (915, 12, 1, 902, 0)
    assert (view.settled, view.accepted, view.rejected) == (12_000, 11_000, 1_000)
    assert list(view.rejects.items()) == [("truncated", 800), ("empty", 200)]
    assert (view.age_s, view.working, view.tokens_per_s, view.waiting) == (3600.0, 3, 5210.0, 0)
    assert view.left_s == pytest.approx(903_000 * 1000 / 5210)
    assert view.to_json()["rejects"] == {"truncated": 800, "empty": 200}


def test_the_sentence_of_a_run_at_work() -> None:
    dead = {"batch-000003": "conflict"}
    view = run_view(status(dead=dead, pending=901), workers({}, {}, {"tokens_per_s": 1810.0}))
    assert view.sentence == (
        "12 of 915 batches done, 3 workers at 5,210 tokens/s, about 2 d left; "
        "1 batch is dead: dflashq backfill r"
    )


def test_nothing_is_estimated_before_anything_is_known() -> None:
    view = run_view(status(counters={}, done=0, pending=914), workers({}))
    assert view.left_s is None
    assert view.sentence == "0 of 915 batches done, 1 worker at 1,700 tokens/s"


def test_a_measured_speed_comes_before_the_announced_one() -> None:
    view = run_view(status(), workers({}), measured_per_s=100.0)
    assert view.tokens_per_s == 100.0
    assert view.left_s == pytest.approx(903_000 * 1000 / 100)


def test_silent_workers_and_those_elsewhere_do_not_count() -> None:
    others = workers({"silent_s": 31}, {"batches": ["r2/batch-000012"]}, {"batches": []})
    view = run_view(status(), others)
    assert (view.working, view.tokens_per_s) == (0, 0.0)
    assert view.sentence.endswith("none of the 2 workers that are up and ready works on it yet")
    assert [w.alive for w in others] == [False, True, True]


def test_no_worker_at_all() -> None:
    assert "celery -A workers worker" in run_view(status(), []).sentence
    assert "celery -A workers worker" in run_view(status(), workers({"silent_s": 99})).sentence


def test_batches_that_are_held_back_and_revisions() -> None:
    held = run_view(status(pending=2), [])
    assert (held.total, held.waiting) == (915, 900)
    assert not held.finished
    more = run_view(status(pending=903, done=13), [])
    assert (more.total, more.waiting) == (917, 0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"state": "paused", "reason": "night"}, "paused (night): dflashq resume r"),
        ({"state": "paused"}, "12 of 915 batches done, paused: dflashq resume r"),
        ({"state": "cancelled", "reason": "wrong"}, "then cancelled (wrong): what is done stays"),
        ({"pending": 0, "leased": [], "done": 915}, "915 of 915 batches done: 11,000 accepted"),
        ({"pending": 0, "leased": [], "done": 915}, "dflashq verify r"),
        (
            {"pending": 0, "leased": [], "done": 913, "dead": {"a": "x", "b": "y"}},
            "1,000 rejected; 2 batches are dead: dflashq backfill r",
        ),
    ],
)
def test_the_sentence_names_what_to_do(changes: dict[str, Any], said: str) -> None:
    assert said in run_view(status(**changes), workers({})).sentence


def test_a_worker_that_announces_less() -> None:
    (view,) = worker_views({"old": {"silent_s": 3}})
    assert (view.engine, view.in_flight, view.tokens_per_s, view.batches) == ("?", 0, 0.0, [])
