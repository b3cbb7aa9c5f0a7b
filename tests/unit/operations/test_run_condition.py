"""The condition of a run: one of a few, whatever the ledger and the workers say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflashq.ledger.models import BatchStatus, RunStatus
from dflashq.operations.monitoring.insights import run_view
from dflashq.operations.monitoring.run_condition import Condition, run_condition
from dflashq.operations.monitoring.worker_view import WorkerView

CANARY = "batch-000000"
WELL: dict[str, Any] = {"name": "w0", "engine": "ready", "queue": "q", "silent_s": 1}


def worker(**changes: Any) -> WorkerView:
    numbers = {"in_flight": 0, "limit": 80, "tokens_per_s": 0.0, "output_tokens": 0}
    return WorkerView(**({"profile": "p", "gpu": "0"} | numbers | WELL | changes))


def status(**changes: Any) -> RunStatus:
    """A run of 10 batches, of which 7 are pending."""
    made: dict[str, Any] = {
        **{"name": "r", "state": "active", "reason": "", "fingerprint": "f", "queue": "q"},
        **{"prompts": 100, "batches": 10, "created_ms": 0, "now_ms": 5000, "pending": 7},
        **{"leased": [], "done": 3, "dead": {}, "kept_bytes": 0, "counters": {}},
    }
    return RunStatus(**(made | changes))


def leased(*holders: str) -> list[BatchStatus]:
    return [BatchStatus(f"batch-00001{n}", "leased", worker=w) for n, w in enumerate(holders)]


def behind_canary(place: str, **changes: Any) -> RunStatus:
    """A run of 10 batches behind its canary."""
    counts: dict[str, Any] = {"done": 0, "pending": 9}
    counts |= {
        "pending": {"pending": 10},
        "leased": {"leased": [BatchStatus(CANARY, "leased", worker="w0")]},
        "done": {"done": 1},
        "dead": {"dead": {CANARY: "no prompts on S3"}},
        "lost": {},
    }[place]
    return status(waits_for=CANARY, canary=place, **(counts | changes))


W1 = {"name": "w1"}
TABLE: list[tuple[RunStatus, list[WorkerView], str, str]] = [
    (status(state="cancelled", reason="wrong"), [worker()], "cancelled", "cancelled (wrong)"),
    (status(state="cancelled", pending=0, done=10), [], "cancelled", "what is done stays on S3"),
    (status(pending=0, done=10), [], "finished", "proof: dflashq verify r"),
    (status(pending=0, done=9, dead={"b": "x"}), [], "finished", "1 batch is dead: dflashq back"),
    (status(pending=0, done=10, state="paused", reason="bad"), [], "finished", "paused (bad): dfl"),
    (status(state="paused", reason="night"), [worker()], "paused", "paused (night): dflashq resum"),
    (status(pending=0, done=3), [worker()], "enqueue_unfinished", "7 batches missing: run the sa"),
    (status(pending=0, done=0), [], "enqueue_unfinished", "dflashq reconcile r"),
    (
        behind_canary("lost", pending=4),
        [worker()],
        "enqueue_unfinished",
        "run the same dflashq enqueue again",
    ),
    (
        behind_canary("dead"),
        [worker()],
        "canary_dead",
        "its canary (batch-000000) is dead: no prompts on S3. Nothing else of the run is begun. "
        "What to do: `dflashq resume r` tries the canary again; `dflashq resume r --accept` goes "
        "on without it (`dflashq backfill r` can revive it later); or `dflashq cancel r`",
    ),
    (behind_canary("dead"), [], "canary_dead", "`dflashq resume r`"),
    (behind_canary("lost"), [worker()], "canary_lost", "`dflashq resume r` adds it again"),
    (behind_canary("done"), [worker()], "canary_unjudged", "judges it within seconds"),
    (behind_canary("done"), [worker(queue="other")], "canary_unjudged", "the workers' logs say"),
    (behind_canary("done"), [], "no_worker", "start one with celery"),
    (behind_canary("pending"), [worker()], "canary_pending", "goes first and 9 others wait"),
    (behind_canary("pending"), [], "no_worker", "start one with celery"),
    (behind_canary("leased"), [worker()], "canary_at_work", "is at work and 9 others wait until"),
    (behind_canary("leased"), [worker(silent_s=40)], "no_worker", "no worker is up"),
    (behind_canary("leased"), [worker(**W1)], "holder_silent", "held by w0, not heard of lately"),
    (behind_canary("leased"), [worker(engine="down"), worker(**W1)], "engines_down", "w0 is down"),
    (status(), [worker(silent_s=31)], "no_worker", "start one with celery -A workers worker"),
    (status(refusal="NOREPLICAS no"), [], "redis_refuses", "(NOREPLICAS no): workers wait for it"),
    (status(refusal="MISCONF"), [worker(silent_s=99)], "redis_refuses", "look silent while"),
    (status(refusal="MISCONF", state="paused"), [worker()], "paused", "dflashq resume r"),
    (status(), [worker(queue="b"), worker(queue="a")], "not_served", "queue q (they serve a, b)"),
    (status(), [worker(queue="")], "pending", "does not work on it yet"),
    (
        status(),
        [worker(refuses=["x", "r"], closed=["draining", "why x", "another engine is needed"])],
        "refused",
        "refuses it (w0: another engine is needed)",
    ),
    (status(), [worker(engine="starting")], "engines_starting", "the engine of w0 is starting"),
    (status(), [worker(engine="failed")], "engines_down", "the engine of w0 is failed"),
    (status(), [worker(sick="HTTP 500")], "engines_sick", "sick: HTTP 500): a worker tries"),
    (status(), [worker(closed=["/dev/shm is full"])], "gates_closed", "/dev/shm is full): mend"),
    (
        status(),
        [worker(engine="down"), worker(name="w1", sick="only errors")],
        "engines_sick",
        "the engine of w0 is down, the engine of w1 is sick: only errors",
    ),
    # A refusal of another run closes no gate.
    (status(), [worker(refuses=["x"], closed=["why x"])], "pending", "does not work on it yet"),
    (status(), [worker(), worker(engine="down")], "pending", "the one worker that is up and ready"),
    (status(leased=leased("gone"), pending=6), [worker()], "pending", "does not work on it yet"),
    (status(leased=leased("gone"), pending=0), [worker()], "holder_silent", "1 batch held by gone"),
    (
        status(leased=leased("w0"), pending=6),
        [worker(engine="down"), worker(**W1)],
        "pending",
        "the one worker that is up and ready",
    ),
    (status(leased=leased("w0"), pending=6), [worker(sick="x")], "engines_sick", "is sick: x"),
    (
        status(leased=leased("w0"), pending=6),
        [worker(closed=["draining"], in_flight=3)],
        "at_work",
        "1 worker at 120 tokens/s, about 1 min left",
    ),
    (status(leased=leased("w0"), pending=6), [worker(closed=["full"])], "gates_closed", "w0 takes"),
    (
        status(leased=leased("w0", "w1"), pending=5, dead={"b": "x"}, done=2),
        [worker(), worker(**W1)],
        "at_work",
        "2 of 10 batches done, 2 workers at 120 tokens/s, about 1 min left; 1 batch is dead",
    ),
    (
        status(leased=leased("w0"), pending=2),
        [worker()],
        "at_work",
        "4 batches not enqueued yet: if no enqueue is at it, run the same dflashq enqueue again",
    ),
    (status(), [worker(batches=["r/batch-000002"])], "at_work", "1 worker at 120 tokens/s"),
]


@pytest.mark.parametrize(
    ("of", "workers", "expected", "said"),
    TABLE,
    ids=[f"{number}-{row[2]}" for number, row in enumerate(TABLE)],
)
def test_every_condition_says_how_it_goes_on(
    of: RunStatus, workers: list[WorkerView], expected: str, said: str
) -> None:
    now = run_condition(of, workers, 120.0, 60.0)
    assert now.condition == expected
    assert said in now.sentence
    view = run_view(of, workers, 120.0, 60.0)
    assert (view.condition, view.sentence) == (expected, now.sentence)


def test_the_table_has_every_condition() -> None:
    assert {row[2] for row in TABLE} == set(Condition)


def test_a_pause_that_says_what_to_do_is_not_told_twice() -> None:
    reason = "too many rejected; go on with `dflashq resume r --accept`"
    assert run_condition(status(state="paused", reason=reason), []).sentence.count("resume r") == 1


def test_a_dead_canary_is_no_batch_to_backfill() -> None:
    both = {CANARY: "x", "batch-000004": "y"}
    assert "are dead: dflashq backfill" not in run_condition(behind_canary("dead"), []).sentence
    assert "1 batch is dead: dflashq backfill r" in (
        run_condition(behind_canary("dead", dead=both), []).sentence
    )


NAMES = st.sampled_from(["w0", "w1", "gone"])
COUNTS = st.sampled_from([0, 1, 5])
VIEWS = st.lists(
    st.builds(
        worker,
        name=NAMES,
        engine=st.sampled_from(["ready", "starting", "down", "failed", "?", "another"]),
        queue=st.sampled_from(["q", "", "other"]),
        silent_s=st.sampled_from([0, 30, 31, 9999]),
        in_flight=COUNTS,
        closed=st.sampled_from([[], ["draining"], ["draining", "why"]]),
        batches=st.sampled_from([[], ["r/batch-000001"], ["s/batch-000001"]]),
        sick=st.sampled_from(["", "it answers HTTP 500 only"]),
        refuses=st.sampled_from([[], ["r"], ["s"], ["s", "r"]]),
    ),
    max_size=3,
)


@st.composite
def statuses(draw: st.DrawFn) -> RunStatus:
    """Any counts that a ledger can hold, and some that none should."""
    holders = draw(st.lists(NAMES, max_size=2))
    dead = {f"batch-00002{n}": "it failed" for n in range(draw(COUNTS))}
    place = draw(st.sampled_from(["", "pending", "leased", "done", "dead", "lost"]))
    held = leased(*holders)
    changes: dict[str, Any] = {"pending": draw(COUNTS), "done": draw(COUNTS)}
    if place == "leased":
        held.append(BatchStatus(CANARY, "leased", worker=draw(NAMES)))
    elif place == "dead":
        dead[CANARY] = "its attempts are spent"
    elif place in ("pending", "done"):
        changes[place] += 1
    return status(
        state=draw(st.sampled_from(["active", "paused", "cancelled"])),
        reason=draw(st.sampled_from(["", "somebody said so"])),
        batches=draw(st.sampled_from([1, 2, 6, 12])),
        **(changes | {"leased": held, "dead": dead}),
        **({"waits_for": CANARY, "canary": place} if place else {}),
    )


@given(statuses(), VIEWS)
def test_every_run_has_one_condition_and_a_sentence(
    of: RunStatus, workers: list[WorkerView]
) -> None:
    now = run_condition(of, workers)
    assert now.condition in set(Condition)
    assert len(now.sentence) > 30
    claimable = of.pending > 0 and of.canary in ("", "pending") and of.state == "active"
    able = [w for w in workers if w.alive]
    if now.condition in (Condition.AT_WORK, Condition.CANARY_AT_WORK):
        assert of.leased or claimable
        assert able
    if now.condition in (Condition.PENDING, Condition.CANARY_PENDING):
        assert claimable
        assert able
    if now.condition.needs_attention:
        assert any(words in now.sentence for words in ("dflashq ", "celery ", "host", "worker")), (
            now.sentence
        )
