"""Server-sent events: after every poll, what a page shows at its top.

A stream holds one of the server's threads, so there are at most `STREAMS`: later ones get a 503,
and their page asks the API every few seconds instead. A stream ends after a few minutes and the
browser opens another, so that a stream whose reader is gone does not hold its thread for long.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

from flask import Blueprint, Response, request

from dflashq.core.errors import DflashqError
from dflashq.web import payloads
from dflashq.web.context import MonitorContext, monitor_of

stream = Blueprint("stream", __name__, url_prefix="/api")

QUIET_S = 4.0  # at most between two events
LIFETIME_S = 300.0


@stream.get("/stream")
def events() -> Response:
    """`event: look` with the run of `run=`, or with all runs; at least every 4 s."""
    monitor, run = monitor_of(), request.args.get("run", "")
    if run:
        monitor.run(run)
    if request.method == "HEAD":
        return Response(mimetype="text/event-stream")
    if not monitor.streams.acquire(blocking=False):
        return Response(
            '{"error": "too many live pages: ask the API instead"}\n',
            503,
            {"Retry-After": "60"},
            mimetype="application/json",
        )
    response = Response(_Stream(monitor, run), mimetype="text/event-stream")
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Accel-Buffering"] = "no"
    return response


class _Stream:
    """The body of a stream; it releases its place among `streams` however it ends, begun or not."""

    def __init__(self, monitor: MonitorContext, run: str) -> None:
        self._monitor, self._run, self._held = monitor, run, True
        self._events = self._each()

    def __iter__(self) -> Iterator[bytes]:
        return self._events

    def close(self) -> None:
        """Release the place. The server calls it at the end, or when the reader is gone."""
        if self._held:
            self._held = False
            self._monitor.streams.release()

    def _each(self) -> Iterator[bytes]:
        poller, until = self._monitor.poller, time.monotonic() + LIFETIME_S
        yield b"retry: 2000\n\n"
        while time.monotonic() < until and not poller.stopped:
            yield self._event()
            snapshot = poller.snapshot
            poller.wait(snapshot.at if snapshot is not None else 0.0, QUIET_S)

    def _event(self) -> bytes:
        row = {"seen": self._monitor.freshness()}
        try:
            if self._run:
                row["run"] = payloads.run_row(self._monitor.run(self._run))
            else:
                row |= payloads.overview(self._monitor.snapshot())
        except DflashqError as exc:
            row["error"] = {"sentence": str(exc)}
        return b"event: look\ndata: " + json.dumps(row, ensure_ascii=False).encode() + b"\n\n"
