"""What a person does from the page happens, and the feed says who did it."""

from __future__ import annotations

from typing import Any

from dflashq.blobs import runs
from tests.integration.web.conftest import Sampled
from tests.support.fleet import wait_until
from tests.support.monitor_fixture import MonitorFixture


def feed(stage: MonitorFixture, run: str = "r") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = stage.get(f"/runs/{run}/events")["events"]
    return found


def test_pause_and_resume(stage: MonitorFixture, sampled: Sampled) -> None:
    stage.look()
    done = stage.post("/runs/r/pause", {"reason": "the disk is\nnearly full"})
    assert done.status_code == 200
    assert stage.ledger.status("r").reason == "the disk is nearly full"
    assert runs.read_state(stage.blobs, "r") == ("paused", "the disk is nearly full")
    assert stage.get("/runs/r")["run"]["state"] == "paused", "the answer is fresh at once"
    stage.look()
    first, *rest = feed(stage)
    assert first["text"] == "somebody at 127.0.0.1 paused the run: the disk is nearly full."
    assert first["who"] == "somebody at 127.0.0.1"
    assert [one["kind"] for one in rest] == ["watched"], "the change is told once"
    assert stage.post("/runs/r/resume", {"accept": True}).status_code == 200
    assert stage.ledger.tolerated("r") == 1.0
    stage.look()
    assert any("accepted its rejections" in one["text"] for one in feed(stage)[:2])


def test_what_others_do_is_told_without_a_name(stage: MonitorFixture, sampled: Sampled) -> None:
    stage.look()
    stage.ledger.set_state("r", "paused", "30% of the last 200 prompts were rejected")
    stage.look()
    event = feed(stage)[0]
    assert event["kind"] == "run_paused"
    assert event["text"] == "The run is paused: 30% of the last 200 prompts were rejected"
    assert "who" not in event


def test_cancel_needs_the_name_of_the_run(stage: MonitorFixture, sampled: Sampled) -> None:
    stage.look()
    refused = stage.post("/runs/r/cancel", {"confirm": "R"})
    assert refused.status_code == 400
    assert stage.ledger.state("r") == "active"
    assert stage.post("/runs/r/cancel", {"confirm": "r"}).status_code == 200
    assert stage.ledger.state("r") == "cancelled"
    again = stage.post("/runs/r/resume", {})
    assert again.status_code == 409
    assert "stays so" in again.json["error"]


def test_dead_batches_are_revived(stage: MonitorFixture, sampled: Sampled) -> None:
    claim = stage.ledger.claim("r", "batch-000002", "w", 60)
    assert claim.lease is not None
    stage.ledger.kill(claim.lease, "broken")
    stage.look()
    done = stage.post("/runs/r/backfill", {"what": "dead"})
    assert done.json["done"] == "somebody at 127.0.0.1 put 1 dead batch back to work."
    assert stage.ledger.pending("r") == ["batch-000002"]


def test_rejected_prompts_run_again_by_reason(stage: MonitorFixture, sampled: Sampled) -> None:
    stage.look()
    done = stage.post("/runs/r/backfill", {"what": "rejected", "reason": "truncated"})
    assert done.status_code == 200
    wait_until(lambda: "1 revision" in feed(stage)[0]["text"], "the feed tells the end")
    assert "put 1 rejected prompt back to work" in feed(stage)[0]["text"]
    assert "batch-000000.r1" in stage.ledger.pending("r")
    stage.look()
    listed = [b["batch"] for b in stage.get("/runs/r/batches")["batches"]]
    assert listed == ["batch-000000", "batch-000000.r1", "batch-000001", "batch-000002"]


def test_a_wrong_verb_or_body_does_nothing(stage: MonitorFixture, sampled: Sampled) -> None:
    stage.look()
    assert stage.post("/runs/r/explode", {}).status_code == 400
    assert stage.post("/runs/r/backfill", {"what": "everything"}).status_code == 400
    assert stage.post("/runs/nothing/pause", {}).status_code == 404
    csrf = stage.get("/session")["csrf"]
    bare = stage.client.post("/api/runs/r/pause", data="x", headers={"X-CSRF-Token": csrf})
    assert bare.status_code == 400
    assert stage.ledger.state("r") == "active"
