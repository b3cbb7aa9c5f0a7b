"""The JSON API: GETs from the last look (samples from S3), and one POST an action."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from flask import Blueprint, Response, g, request

from dflashq.core import keys
from dflashq.core.errors import DflashqError, UsageError
from dflashq.operations.monitoring.snapshot import ObservedRun
from dflashq.web import payloads
from dflashq.web.context import doors_of, monitor_of

api = Blueprint("api", __name__, url_prefix="/api")

SAMPLES_A_PAGE, SAMPLES_AT_MOST = 20, 100
EVENTS_A_PAGE, EVENTS_AT_MOST = 100, 1000


def said(row: dict[str, Any], status: int = 200) -> Response:
    """A JSON answer; a GET that has not changed since the caller's ETag is a 304."""
    body = json.dumps(row, ensure_ascii=False, separators=(",", ":"))
    if request.method != "GET" or status != 200:
        return Response(body + "\n", status, mimetype="application/json")
    tag = hashlib.blake2b(body.encode(), digest_size=12).hexdigest()
    age = json.dumps({"seen": monitor_of().freshness()}, ensure_ascii=False)
    response = Response(f"{body[:-1]},{age[1:]}\n", mimetype="application/json")
    response.set_etag(tag, weak=True)
    response.headers["Cache-Control"] = "no-cache"
    response.make_conditional(request)
    return response


def _number(name: str, fallback: int, most: int = 10**9) -> int:
    text = request.args.get(name, "")
    if not text:
        return fallback
    if not text.isdigit():
        raise UsageError(f"{name}={text!r} is no number")
    return min(int(text), most)


@api.get("/session")
def who() -> Response:
    """Who I am, and the CSRF token of my session."""
    return Response(
        json.dumps({"who": g.who, "csrf": doors_of().csrf()}), mimetype="application/json"
    )


@api.get("/runs")
def runs() -> Response:
    """All runs, those at work first."""
    return said(payloads.overview(monitor_of().seen()))


@api.get("/runs/<run>")
def one_run(run: str) -> Response:
    """One run in numbers and a sentence."""
    return said({"run": payloads.run_row(monitor_of().run(run))})


@api.get("/runs/<run>/batches")
def batches(run: str) -> Response:
    """A page of its batches: `state`, `reason`, `offset`, `limit`."""
    state = request.args.get("state", "")
    if state and state not in payloads.STATES:
        raise UsageError(f"state={state!r} is none of {', '.join(payloads.STATES)}")
    return said(
        payloads.batches_answer(
            monitor_of().run(run),
            state=state,
            reason=request.args.get("reason", ""),
            offset=_number("offset", 0),
            limit=_number("limit", payloads.BATCHES_A_PAGE),
        )
    )


@api.get("/runs/<run>/batches/<batch>")
def one_batch(run: str, batch: str) -> Response:
    """One batch with its story: what happened to it, oldest first."""
    seen = monitor_of().run(run)
    found = next((b for b in seen.batches if b.name == batch), None)
    if found is None:
        raise UsageError(f"run {run!r} has no batch {batch!r} in the ledger yet")
    row = payloads.batch_row(found, seen)
    row["rejects"] = payloads.rejects_of(batch, seen)
    row["story"] = monitor_of().poller.story(run, batch)
    return said({"run": run, "batch": row})


@api.get("/runs/<run>/series")
def series(run: str) -> Response:
    """Numbers over time: `over=hours` (10 s apart) or `over=days` (10 min apart)."""
    monitor_of().run(run)
    long = request.args.get("over", "hours") == "days"
    return said({"run": run, "points": monitor_of().poller.series(run, long=long)})


@api.get("/runs/<run>/domains")
def domains(run: str) -> Response:
    """Shares of domains over a spread of the batches; null before they were counted."""
    monitor_of().run(run)
    return said({"run": run, "counted": monitor_of().poller.domains(run)})


@api.get("/runs/<run>/events")
def run_events(run: str) -> Response:
    """What happened, newest first: the run's events and the fleet's."""
    monitor_of().run(run)
    limit = _number("limit", EVENTS_A_PAGE, EVENTS_AT_MOST)
    return said({"run": run, "events": monitor_of().poller.events(run, limit)})


@api.get("/events")
def fleet_events() -> Response:
    """What happened to the workers, newest first."""
    limit = _number("limit", EVENTS_A_PAGE, EVENTS_AT_MOST)
    return said({"events": monitor_of().poller.events("", limit)})


@api.get("/workers")
def workers() -> Response:
    """A page of the workers, sick ones first: `run`, `offset`, `limit`."""
    return said(
        payloads.workers_answer(
            monitor_of().seen(),
            run=request.args.get("run", ""),
            offset=_number("offset", 0),
            limit=_number("limit", payloads.WORKERS_A_PAGE),
        )
    )


@api.get("/runs/<run>/samples")
def samples(run: str) -> Response:
    """Samples of one committed batch: `batch`, `verdict` (all, accepted, rejected, a reason)."""
    seen, verdict = monitor_of().run(run), request.args.get("verdict", "all")
    able = _batches_with(seen, verdict)
    batch = _batch_name(request.args.get("batch", "") or (able[-1] if able else ""))
    row: dict[str, Any] = {"run": run, "batch": batch, "verdict": verdict, "batches": len(able)}
    if not batch:
        return said(row | {"total": 0, "samples": [], "previous": None, "next": None})
    heads = [preview.head for preview in monitor_of().samples.sheets(run, batch)]
    chosen = [head for head in heads if verdict in ("all", head["verdict"], head["reason"])]
    offset = _number("offset", 0)
    limit = max(1, _number("limit", SAMPLES_A_PAGE, SAMPLES_AT_MOST))
    row |= {"total": len(chosen), "offset": offset, "limit": limit}
    row |= dict(zip(("previous", "next"), _beside(able, batch), strict=True))
    row["verdicts"] = _tally(heads)
    return said(row | {"samples": chosen[offset : offset + limit]})


def _batches_with(seen: ObservedRun, verdict: str) -> list[str]:
    """Done batches that hold samples of a verdict, in order."""

    def holds(batch: str) -> bool:
        rejects = payloads.rejects_of(batch, seen)
        if verdict == "all":
            return True
        if verdict == "accepted":
            return bool(seen.counts.get(batch, {}).get("accepted"))
        return any(rejects.values()) if verdict == "rejected" else bool(rejects.get(verdict))

    return [b.name for b in seen.batches if b.state == "done" and holds(b.name)]


def _beside(names: list[str], name: str) -> tuple[str | None, str | None]:
    """The batches before and behind one, whether or not it is itself among them."""
    ordered = sorted({*names, name}, key=keys.parse_batch)
    at = ordered.index(name)
    before = ordered[at - 1] if at else None
    return before, ordered[at + 1] if at + 1 < len(ordered) else None


def _batch_name(name: str) -> str:
    """The same name, or UsageError: what is no batch's name must not become part of a key."""
    try:
        return name and keys.batch_name(*keys.parse_batch(name))
    except ValueError as exc:
        raise UsageError(str(exc)) from None


def _tally(heads: list[dict[str, Any]]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for head in heads:
        name = head["reason"] or "accepted"
        counts[name] = counts.get(name, 0) + 1
    return counts


@api.get("/runs/<run>/samples/<batch>/<int:index>")
def one_sample(run: str, batch: str, index: int) -> Response:
    """One sample whole: messages with their thinking, usage, verdict; no token ids."""
    monitor_of().run(run)
    for preview in monitor_of().samples.sheets(run, _batch_name(batch)):
        if preview.head["index"] == index:
            return said({"run": run, "batch": batch, "sample": preview.text()})
    raise UsageError(f"{batch} of run {run!r} holds no index {index}")


# --- actions


@api.post("/runs/<run>/<verb>")
def act(run: str, verb: str) -> Response:
    """pause, resume, cancel or backfill; the answer has the sentence that the feed has."""
    asked = request.get_json(silent=True)
    if not isinstance(asked, dict):
        raise UsageError("the body is no JSON object")
    return said({"run": run, "done": _done(run, verb, asked)})


def _done(run: str, verb: str, asked: dict[str, Any]) -> str:
    monitor, doer = monitor_of(), str(g.who)
    monitor.run(run)
    reason = str(asked.get("reason") or "")
    if verb == "pause":
        told = monitor.actions.pause(run, doer, reason)
    elif verb == "resume":
        told = monitor.actions.resume(run, doer, accept=asked.get("accept") is True)
    elif verb == "cancel":
        if asked.get("confirm") != run:
            raise UsageError('cancel is for good: say "confirm" with the name of the run')
        told = monitor.actions.cancel(run, doer, reason)
    elif verb == "backfill" and asked.get("what") == "dead":
        told = monitor.actions.revive(run, doer)
    elif verb == "backfill" and asked.get("what") == "rejected":
        told = monitor.actions.rerun(run, doer, reason or None)
    else:
        raise UsageError('pause, resume, cancel, or backfill with "what": "dead" or "rejected"')
    _look_again()
    return told


def _look_again() -> None:
    try:
        monitor_of().poller.look()
    except DflashqError:
        # It was done; that the numbers are old, the page says by itself.
        return
