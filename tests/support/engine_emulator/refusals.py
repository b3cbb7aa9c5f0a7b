"""How the emulated engine refuses: HTTP errors, closed connections, answers cut short."""

from __future__ import annotations

from aiohttp import web

from tests.support.engine_emulator.faults import Faults, Refusal

REFUSED = "the emulated gateway refuses this prompt"
ERRS = "the emulated engine only errs"
CUT = '{"text": "cut of'
BUSY = (429, 503)


def refusal(message: str) -> web.Response:
    """400, for a request that the contract forbids."""
    return web.json_response({"error": {"message": message}}, status=400)


def http_error(status: int, faults: Faults) -> web.Response:
    """An error of the engine itself, in the flat shape that SGLang gives it."""
    message = "The request queue is full." if status == 503 else "Internal Server Error"
    body = {"object": "error", "message": message, "type": str(status), "param": None}
    return web.json_response(
        {**body, "code": status}, status=status, headers=_retry_after(status, faults)
    )


def fail(faults: Faults) -> web.Response:
    """The answer of an engine that only errs."""
    return _openai_error(faults.every_status, ERRS, faults)


def refuse_for_ever(
    request: web.Request, how: Refusal | int, faults: Faults, *, streamed: bool
) -> web.Response:
    """The answer to a prompt that is never taken: `how` is a status, `close` or `garbage`."""
    if how == "garbage":
        return garbage(streamed=streamed)
    if how == "close":
        assert request.transport is not None
        request.transport.close()
    status = how if isinstance(how, int) else faults.refused_status
    return _openai_error(status, REFUSED, faults)


def garbage(*, streamed: bool = False) -> web.Response:
    """200 with a body, or with a piece of a stream, that is cut short."""
    if streamed:
        return web.Response(text=f"data: {CUT}\n\n", content_type="text/event-stream")
    return web.Response(text=CUT, content_type="application/json")


def _openai_error(status: int, message: str, faults: Faults) -> web.Response:
    error = {"message": message, "type": "emulated_error", "param": None, "code": status}
    return web.json_response({"error": error}, status=status, headers=_retry_after(status, faults))


def _retry_after(status: int, faults: Faults) -> dict[str, str]:
    if status in BUSY and faults.retry_after_s:
        return {"Retry-After": f"{faults.retry_after_s:g}"}
    return {}
