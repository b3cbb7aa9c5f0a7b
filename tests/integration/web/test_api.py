"""The API's names and numbers, against a real ledger and real objects."""

from __future__ import annotations

import json

import pytest

from dflashq.config import Settings
from dflashq.core import codec, keys
from dflashq.core.errors import ConflictError, LedgerUnreachableError
from dflashq.ledger.connection import connect
from dflashq.operations.housekeeping.progress import keep_progress
from dflashq.operations.monitoring.domain_counts import count_domains
from dflashq.operations.monitoring.progress_object import read_progress, write_progress
from tests.integration.web.conftest import Sampled
from tests.support.monitor_fixture import MonitorFixture, announce, worker_name
from tests.support.sample_rows import bad, sample

RUN_NAMES = {
    *("name", "state", "reason", "sentence", "ended", "finished", "queue", "fingerprint"),
    *("total", "done", "leased", "pending", "waiting", "dead", "prompts", "settled"),
    *("accepted", "rejected", "rejects", "output_tokens", "kept_bytes", "age_s", "working"),
    *("tokens_per_s", "left_s", "forecast", "waits_for", "batches_version"),
    *("condition", "needs_attention"),
}
WORKER_NAMES = {
    *("worker", "alive", "trouble", "host", "boot", "gpu", "profile", "engine", "in_flight"),
    *("limit", "waiting", "queued", "kv_use", "accept_length", "tokens_per_s", "output_tokens"),
    *("restarts", "last_error", "silent_s", "sick", "closed", "batches"),
}


def test_a_run_is_told_with_the_ledgers_numbers(stage: MonitorFixture, sampled: Sampled) -> None:
    announce(sampled.fleet.ledger, 0, ["r/batch-000002"])
    stage.look()
    run = stage.get("/runs/r")["run"]
    assert set(run) == RUN_NAMES
    status = sampled.fleet.ledger.status("r")
    assert run["done"] == status.done == 2
    assert run["settled"] == status.counters["prompts"] == 10
    assert run["accepted"] == 8
    assert run["rejects"] == {"looping": 1, "truncated": 1}
    assert run["pending"] == 1
    assert (run["condition"], run["needs_attention"]) == ("at_work", False)
    assert run["tokens_per_s"] == 1500.0
    assert run["sentence"].startswith("2 of 3 batches done, 1 worker at 1,500 tokens/s")
    forecast = run["forecast"]
    assert forecast["low_s"] <= forecast["left_s"] <= forecast["high_s"]
    assert forecast["tokens"] == 2 * 40
    assert run["left_s"] == forecast["left_s"]
    listed = stage.get("/runs")
    assert [one["name"] for one in listed["runs"]] == ["r"]
    assert listed["workers"]["alive"] == 1
    assert listed["seen"]["age_s"] < 5


def test_a_run_enqueued_after_the_last_look_is_found(
    stage: MonitorFixture, sampled: Sampled, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.look()
    sampled.fleet.enqueue("later")
    monkeypatch.setattr("dflashq.web.context.REPOLL_S", 0.0)
    assert stage.get("/runs/later")["run"]["total"] == 3


def test_batches_pages_states_and_stories(stage: MonitorFixture, sampled: Sampled) -> None:
    ledger = sampled.fleet.ledger
    claim = ledger.claim("r", "batch-000002", "w", 60)
    assert claim.lease is not None
    ledger.begin(claim.lease)
    ledger.kill(claim.lease, "conflict: another object")
    stage.look()
    row = stage.get("/runs/r/batches")
    assert [(b["batch"], b["state"]) for b in row["batches"]] == [
        ("batch-000000", "done"),
        ("batch-000001", "done"),
        ("batch-000002", "dead"),
    ]
    assert row["states"] == {"pending": 0, "waiting": 0, "leased": 0, "done": 2, "dead": 1}
    assert row["batches"][0]["rejected"] == 2
    assert row["batches"][0]["accepted"] == 3
    page = stage.get("/runs/r/batches?limit=2&offset=2")
    assert [b["batch"] for b in page["batches"]] == ["batch-000002"]
    assert [(s["offset"], s["done"], s["dead"]) for s in page["segments"]] == [(0, 2, 0), (2, 0, 1)]
    found = stage.get("/runs/r/batches?reason=looping")["batches"]
    assert [b["batch"] for b in found] == ["batch-000000"]
    assert [b["batch"] for b in stage.get("/runs/r/batches?state=dead")["batches"]] == [
        "batch-000002"
    ]
    one = stage.get("/runs/r/batches/batch-000002")["batch"]
    assert one["reason"] == "conflict: another object"
    assert one["attempts"] == 1
    assert [event["what"] for event in one["story"]] == ["conflict: another object"]
    done = stage.get("/runs/r/batches/batch-000000")["batch"]
    assert done["rejects"] == {"truncated": 1, "looping": 1}


def test_behind_a_canary_the_others_wait(stage: MonitorFixture) -> None:
    names = [keys.batch_name(n) for n in range(3)]
    stage.ledger.register("c", "f" * 64, "q", 30, 3, canary=names[0])
    stage.ledger.add("c", names)
    stage.look()
    states = [b["state"] for b in stage.get("/runs/c/batches")["batches"]]
    assert states == ["pending", "waiting", "waiting"]
    stage.ledger.release_canary("c")
    stage.look()
    assert stage.get("/runs/c/batches")["states"]["pending"] == 3
    assert "other batches may go" in stage.get("/runs/c/events")["events"][0]["text"]


def test_a_sick_worker_needs_a_look_and_so_does_its_run(
    stage: MonitorFixture, sampled: Sampled
) -> None:
    announce(stage.ledger, 0, [])
    announce(stage.ledger, 1, [], sick="it answers HTTP 500 only")
    stage.look()
    row = stage.get("/workers")
    assert [one["trouble"] for one in row["workers"]] == [2, 0]
    assert row["workers"][0]["sick"] == "it answers HTTP 500 only"
    overview = stage.get("/runs")
    assert overview["workers"]["sick"] == 1
    assert not overview["runs"][0]["needs_attention"], "the other one may take it"
    announce(stage.ledger, 0, [], sick="it answers HTTP 500 only")
    stage.look()
    run = stage.get("/runs/r")["run"]
    assert (run["condition"], run["needs_attention"]) == ("engines_sick", True)
    assert "it answers HTTP 500 only" in run["sentence"]


def test_workers_sick_ones_first_and_unknown_is_null(stage: MonitorFixture) -> None:
    announce(stage.ledger, 0, [])
    announce(stage.ledger, 1, ["r/batch-000000"], engine="down", closed=["the engine is down"])
    old = {"host": "h", "engine": "ready", "in_flight": 1, "limit": 2, "tokens_per_s": 3.0}
    stage.ledger.announce("old@h", old)
    stage.look()
    row = stage.get("/workers")
    assert row["total"] == 3
    assert row["sick"] == 1
    assert set(row["workers"][0]) == WORKER_NAMES
    assert row["workers"][0]["worker"] == worker_name(1)
    assert row["workers"][0]["trouble"] == 2
    told = {one["worker"]: one for one in row["workers"]}["old@h"]
    assert told["kv_use"] is None
    assert told["boot"] is None
    assert told["accept_length"] is None
    mine = stage.get("/workers?run=r")["workers"]
    assert [one["worker"] for one in mine] == [worker_name(1)]


def test_samples_come_from_s3_with_their_verdicts(stage: MonitorFixture, sampled: Sampled) -> None:
    stage.look()
    row = stage.get("/runs/r/samples?batch=batch-000000")
    assert [one["index"] for one in row["samples"]] == [0, 1, 2, 3, 4]
    assert row["verdicts"] == {"accepted": 3, "truncated": 1, "looping": 1}
    assert (row["previous"], row["next"]) == (None, "batch-000001")
    rejected = stage.get("/runs/r/samples?verdict=truncated")
    assert rejected["batch"] == "batch-000000"
    assert [one["index"] for one in rejected["samples"]] == [3]
    assert rejected["samples"][0]["detail"] == "it was truncated"
    newest = stage.get("/runs/r/samples?verdict=accepted&limit=2&offset=4")
    assert newest["batch"] == "batch-000001"
    assert [one["index"] for one in newest["samples"]] == [9]
    whole = stage.get("/runs/r/samples/batch-000000/3")["sample"]
    assert whole["reason"] == "truncated"
    assert whole["messages"][1]["reasoning_content"] == "thought 3.0"
    assert whole["accept_lengths"] == [3.0]
    assert "generations" not in whole
    missing = stage.client.get("/api/runs/r/samples?batch=batch-000002")
    assert missing.status_code == 404
    assert "no samples yet" in missing.json["error"]


def test_numbers_over_time_survive_another_monitor(stage: MonitorFixture, sampled: Sampled) -> None:
    stage.look()
    points = stage.get("/runs/r/series")["points"]
    assert len(points) == 1
    assert points[0]["settled"] == 10
    assert points[0]["rejects"] == {"looping": 1, "truncated": 1}
    stage.look()
    assert stage.get("/runs/r/series")["points"] == points, "not every look is a point"
    stage.poller.stop()
    second = MonitorFixture(sampled.fleet.settings)
    second.look()
    assert second.get("/runs/r/series?over=days")["points"] == points
    events = second.get("/runs/r/events")["events"]
    assert [one["kind"] for one in events] == ["watched"], "nothing is told twice"
    sampled.settle("batch-000002", [10, 11], {})
    for _ in range(3):
        second.look()
    settled = [point["settled"] for point in second.get("/runs/r/series")["points"]]
    assert settled == [10, 12], "a run's end is a point, once"


def test_only_the_leading_monitor_tells(stage: MonitorFixture, sampled: Sampled) -> None:
    stage.look()
    second = MonitorFixture(sampled.fleet.settings)
    second.look()
    sampled.settle("batch-000002", [10, 11], {})
    second.look()
    stage.look()
    second.look()
    kinds = [one["kind"] for one in second.get("/runs/r/events")["events"]]
    assert kinds.count("batch_done") == 1
    assert kinds.count("run_finished") == 1


def test_domains_are_counted_from_s3(stage: MonitorFixture, sampled: Sampled) -> None:
    counted = count_domains(stage.blobs, "r", ["batch-000000", "batch-000001"])
    assert counted["whole"] is True
    by_name = {row["domain"]: row for row in counted["domains"]}
    assert sum(row["prompts"] for row in counted["domains"]) == 12
    assert sum(row["accepted"] for row in counted["domains"]) == 8
    assert by_name["coding"]["rejected"] == 1  # index 3
    assert by_name["general"]["tokens"] == 40 * 3  # indexes 1, 4 and 7


@pytest.mark.parametrize("verdict", ["accepted", "rejected"])
def test_a_damaged_object_is_not_counted(
    stage: MonitorFixture, sampled: Sampled, verdict: str
) -> None:
    ref = sampled.fleet.ledger.done("r")["batch-000000"]
    key = ref.key if verdict == "accepted" else ref.rejected_key
    assert key is not None
    row = sample(0) if verdict == "accepted" else bad(3, "truncated")
    stage.blobs.put(key, codec.encode_rows([row]), stage.blobs.head(key))
    with pytest.raises(ConflictError, match="damaged"):
        count_domains(stage.blobs, "r", ["batch-000000"])


def test_progress_json_lies_on_s3(stage: MonitorFixture, sampled: Sampled) -> None:
    stage.look()
    row = read_progress(stage.blobs, "r")
    assert row is not None
    assert row["done"] == 2
    assert row["sentence"].startswith("2 of 3 batches done")
    assert row["written"].endswith("+00:00")
    sampled.settle("batch-000002", [10, 11], {})
    stage.look()
    final = read_progress(stage.blobs, "r")
    assert final is not None
    assert final["finished"] is True, "a run's last state is written at once"
    write_progress(stage.ledger, stage.blobs, "r")
    again = read_progress(stage.blobs, "r")
    assert again is not None
    assert again["accepted"] == 10


def test_a_worker_writes_progress_json_where_no_monitor_does(
    stage: MonitorFixture, sampled: Sampled, settings: Settings
) -> None:
    ended: set[str] = set()

    def keep() -> list[str]:
        return keep_progress(stage.ledger, stage.blobs, ended)

    def keep_soon() -> list[str]:
        """As after a minute: the lock has fallen."""
        connect(settings).delete(keys.PROGRESS_LOCK)
        return keep()

    assert keep_soon() == ["r"]
    assert keep() == [], "another worker, or the same, within the minute"
    row = read_progress(stage.blobs, "r")
    assert row is not None
    assert (row["done"], row["finished"], row["forecast"]) == (2, False, None)
    assert keep_soon() == [], "fresh, whoever wrote it"
    late = {**row, "written": "2026-01-01T00:00:00+00:00"}
    stage.blobs.put(keys.progress_json("r"), json.dumps(late).encode())
    assert keep_soon() == ["r"]
    stage.blobs.put(keys.progress_json("r"), b"{oops")
    assert keep_soon() == ["r"], "a damaged one is written anew"
    sampled.settle("batch-000002", [10, 11], {})
    assert keep_soon() == ["r"], "the last state does not wait until it is stale"
    assert ended == {"r"}
    assert keep_soon() == []
    final = read_progress(stage.blobs, "r")
    assert final is not None
    assert final["finished"] is True


def test_an_answer_that_has_not_changed_is_a_304(stage: MonitorFixture, sampled: Sampled) -> None:
    stage.look()
    first = stage.client.get("/api/runs/r/batches")
    again = stage.client.get(
        "/api/runs/r/batches", headers={"If-None-Match": first.headers["ETag"]}
    )
    assert again.status_code == 304
    sampled.settle("batch-000002", [10, 11], {})
    stage.look()
    later = stage.client.get(
        "/api/runs/r/batches", headers={"If-None-Match": first.headers["ETag"]}
    )
    assert later.status_code == 200


def test_wrong_questions_get_a_sentence(stage: MonitorFixture, sampled: Sampled) -> None:
    stage.look()
    for path, status, words in (
        ("/runs/nothing", 404, "no run named 'nothing'"),
        ("/runs/r/batches?state=odd", 400, "none of pending"),
        ("/runs/r/batches?offset=x", 400, "no number"),
        ("/runs/r/batches/batch-000099", 400, "has no batch"),
        ("/runs/r/samples?batch=../../x", 400, "is no batch name"),
        ("/runs/r/samples/batch-000000/99", 400, "holds no index 99"),
    ):
        response = stage.client.get(f"/api{path}")
        assert response.status_code == status, path
        assert words in response.json["error"]


def test_the_stream_tells_and_its_places_are_bounded(
    stage: MonitorFixture, sampled: Sampled
) -> None:
    stage.look()
    response = stage.client.get("/api/stream?run=r", buffered=False)
    body = iter(response.response)
    assert next(body).startswith(b"retry:")
    head, line = next(body).decode().splitlines()[:2]
    assert head == "event: look"
    row = json.loads(line.removeprefix("data: "))
    assert row["run"]["done"] == 2
    assert row["seen"]["trouble"] == ""
    held = 1
    while stage.monitor.streams.acquire(blocking=False):
        held += 1
    refused = stage.client.get("/api/stream?run=r")
    assert refused.status_code == 503
    assert held == 12
    response.close()
    assert stage.monitor.streams.acquire(blocking=False), "a closed stream gives its place back"


def test_an_outage_shows_as_age(
    stage: MonitorFixture, sampled: Sampled, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.look()

    def away() -> None:
        raise LedgerUnreachableError("Redis at 127.0.0.1 did not answer")

    monkeypatch.setattr(stage.ledger, "workers", away)
    stage.look()
    row = stage.get("/runs/r")
    assert row["run"]["done"] == 2, "the last numbers stay"
    assert row["seen"]["trouble"] == "Redis at 127.0.0.1 did not answer"
    monkeypatch.undo()
    stage.look()
    assert stage.get("/runs/r")["seen"]["trouble"] == ""
