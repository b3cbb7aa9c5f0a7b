"""The JSON API: GETs are answered from the last snapshot (samples from S3), POSTs are actions."""

from __future__ import annotations

import contextlib
import hashlib
import json
from typing import Any

from flask import Blueprint, Response, g, request

from dflashq.core import keys
from dflashq.core.errors import DflashqError, UsageError
from dflashq.core.states import BatchState
from dflashq.operations.monitoring.snapshot import ObservedRun
from dflashq.web import payloads
from dflashq.web.context import auth_of, monitor_of

api = Blueprint("api", __name__, url_prefix="/api")

SAMPLES_A_PAGE, SAMPLES_AT_MOST = 20, 100
EVENTS_A_PAGE, EVENTS_AT_MOST = 100, 1000


def json_response(row: dict[str, Any], status: int = 200) -> Response:
    """A JSON response; a 304 for a GET whose content still has the caller's ETag.

    The age of the numbers, `seen`, is added after the ETag is computed, since it always changes.
    """
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
def session_info() -> Response:
    """The name of the caller, and the CSRF token of the session."""
    return Response(
        json.dumps({"who": g.who, "csrf": auth_of().csrf_token()}), mimetype="application/json"
    )


@api.get("/runs")
def runs() -> Response:
    """All runs, those at work first."""
    return json_response(payloads.overview(monitor_of().snapshot()))


@api.get("/runs/<run>")
def one_run(run: str) -> Response:
    """One run in numbers and a sentence."""
    return json_response({"run": payloads.run_row(monitor_of().run(run))})


@api.get("/runs/<run>/batches")
def batches(run: str) -> Response:
    """A page of its batches: `state`, `reason`, `offset`, `limit`."""
    state = request.args.get("state", "")
    if state and state not in payloads.STATES:
        raise UsageError(f"state={state!r} is none of {', '.join(payloads.STATES)}")
    return json_response(
        payloads.batches_page(
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
    observed = monitor_of().run(run)
    status = next((b for b in observed.batches if b.name == batch), None)
    if status is None:
        raise UsageError(f"run {run!r} has no batch {batch!r} in the ledger yet")
    row = payloads.batch_row(status, observed)
    row["rejects"] = payloads.rejects_of(batch, observed)
    row["story"] = monitor_of().poller.story(run, batch)
    return json_response({"run": run, "batch": row})


@api.get("/runs/<run>/series")
def series(run: str) -> Response:
    """Numbers over time: `over=hours` (10 s apart) or `over=days` (10 min apart)."""
    monitor_of().run(run)
    long = request.args.get("over", "hours") == "days"
    return json_response({"run": run, "points": monitor_of().poller.series(run, long=long)})


@api.get("/runs/<run>/domains")
def domains(run: str) -> Response:
    """The domains, counted over a spread of the batches; null before the first count."""
    monitor_of().run(run)
    return json_response({"run": run, "counted": monitor_of().poller.domains(run)})


@api.get("/runs/<run>/events")
def run_events(run: str) -> Response:
    """The events of the run and of the fleet, newest first: `limit`."""
    monitor_of().run(run)
    limit = _number("limit", EVENTS_A_PAGE, EVENTS_AT_MOST)
    return json_response({"run": run, "events": monitor_of().poller.events(run, limit)})


@api.get("/events")
def fleet_events() -> Response:
    """The events of the fleet, newest first: `limit`."""
    limit = _number("limit", EVENTS_A_PAGE, EVENTS_AT_MOST)
    return json_response({"events": monitor_of().poller.events("", limit)})


@api.get("/workers")
def workers() -> Response:
    """A page of the workers, those with a problem first: `run`, `offset`, `limit`."""
    return json_response(
        payloads.workers_page(
            monitor_of().snapshot(),
            run=request.args.get("run", ""),
            offset=_number("offset", 0),
            limit=_number("limit", payloads.WORKERS_A_PAGE),
        )
    )


@api.get("/runs/<run>/samples")
def samples(run: str) -> Response:
    """Samples of one committed batch: `batch`, `verdict` (all, accepted, rejected, a reason)."""
    verdict = request.args.get("verdict", "all")
    names = _batches_with(monitor_of().run(run), verdict)
    batch = _checked_batch_name(request.args.get("batch", "") or (names[-1] if names else ""))
    row: dict[str, Any] = {"run": run, "batch": batch, "verdict": verdict, "batches": len(names)}
    if not batch:
        return json_response(row | {"total": 0, "samples": [], "previous": None, "next": None})
    heads = [preview.head for preview in monitor_of().samples.previews(run, batch)]
    chosen = [head for head in heads if verdict in ("all", head["verdict"], head["reason"])]
    offset = _number("offset", 0)
    limit = max(1, _number("limit", SAMPLES_A_PAGE, SAMPLES_AT_MOST))
    row |= {"total": len(chosen), "offset": offset, "limit": limit}
    row |= dict(zip(("previous", "next"), _neighbours(names, batch), strict=True))
    row["verdicts"] = _verdict_counts(heads)
    return json_response(row | {"samples": chosen[offset : offset + limit]})


def _batches_with(observed: ObservedRun, verdict: str) -> list[str]:
    """Done batches that hold samples of a verdict, in order."""

    def holds(batch: str) -> bool:
        rejects = payloads.rejects_of(batch, observed)
        if verdict == "all":
            return True
        if verdict == "accepted":
            return bool(observed.counts.get(batch, {}).get("accepted"))
        return any(rejects.values()) if verdict == "rejected" else bool(rejects.get(verdict))

    return [b.name for b in observed.batches if b.state == BatchState.DONE and holds(b.name)]


def _neighbours(names: list[str], name: str) -> tuple[str | None, str | None]:
    """The names before and after `name`, which need not be among them itself."""
    ordered = sorted({*names, name}, key=keys.parse_batch)
    place = ordered.index(name)
    before = ordered[place - 1] if place else None
    return before, ordered[place + 1] if place + 1 < len(ordered) else None


def _checked_batch_name(name: str) -> str:
    """The same name. UsageError for one that no batch can have: it becomes part of a key on S3."""
    try:
        return name and keys.batch_name(*keys.parse_batch(name))
    except ValueError as exc:
        raise UsageError(str(exc)) from None


def _verdict_counts(heads: list[dict[str, Any]]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for head in heads:
        name = head["reason"] or "accepted"
        counts[name] = counts.get(name, 0) + 1
    return counts


@api.get("/runs/<run>/samples/<batch>/<int:index>")
def one_sample(run: str, batch: str, index: int) -> Response:
    """One sample: messages with their thinking, usage, verdict; without token ids."""
    monitor_of().run(run)
    for preview in monitor_of().samples.previews(run, _checked_batch_name(batch)):
        if preview.head["index"] == index:
            return json_response({"run": run, "batch": batch, "sample": preview.text()})
    raise UsageError(f"{batch} of run {run!r} holds no index {index}")


# --- actions


@api.post("/runs/<run>/<verb>")
def run_action(run: str, verb: str) -> Response:
    """pause, resume, cancel or backfill; `done` is the sentence that the feed has."""
    body = request.get_json(silent=True)
    if not isinstance(body, dict):
        raise UsageError("the body is no JSON object")
    return json_response({"run": run, "done": _run_action(run, verb, body)})


def _run_action(run: str, verb: str, body: dict[str, Any]) -> str:
    monitor, actor = monitor_of(), str(g.who)
    monitor.run(run)
    reason = str(body.get("reason") or "")
    if verb == "pause":
        sentence = monitor.actions.pause(run, actor, reason)
    elif verb == "resume":
        sentence = monitor.actions.resume(run, actor, accept=body.get("accept") is True)
    elif verb == "cancel":
        if body.get("confirm") != run:
            raise UsageError('cancel is for good: say "confirm" with the name of the run')
        sentence = monitor.actions.cancel(run, actor, reason)
    elif verb == "backfill" and body.get("what") == "dead":
        sentence = monitor.actions.revive(run, actor)
    elif verb == "backfill" and body.get("what") == "rejected":
        sentence = monitor.actions.rerun(run, actor, reason or None)
    else:
        raise UsageError('pause, resume, cancel, or backfill with "what": "dead" or "rejected"')
    _refresh()
    return sentence


def _refresh() -> None:
    """Poll now, so that the page shows the effect of an action at once."""
    # The action was done all the same. Where the poll fails, the page says how old its numbers are.
    with contextlib.suppress(DflashqError):
        monitor_of().poller.poll()
