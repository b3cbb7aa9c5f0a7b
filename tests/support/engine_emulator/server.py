"""The HTTP face of the emulated engine."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
from aiohttp import web
from pydantic import ValidationError

from tests.support.engine_emulator import shapes
from tests.support.engine_emulator.answers import Answer, Voice, unit
from tests.support.engine_emulator.batch import Batch, Entry, Outcome, Pace
from tests.support.engine_emulator.chat import VLLM, Chat, keyed
from tests.support.engine_emulator.faults import Faults
from tests.support.engine_emulator.generate_request import GenerateRequest, parse_generate
from tests.support.engine_emulator.refusals import (
    fail,
    garbage,
    http_error,
    refusal,
    refuse_for_ever,
)
from tests.support.engine_emulator.stats import Stats
from tests.support.engine_emulator.stream import Stream
from tests.support.engine_emulator.template import Template

MAX_BODY = 64 * 1024 * 1024
POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Options:
    """How the emulated engine is set up; see `__main__` for what each means."""

    model: str
    slots: int
    pace: Pace
    voice: Voice
    context_length: int
    speculation: str | None
    server_info: dict[str, Any] = field(default_factory=dict)
    tokenizer: Path | None = None
    template_extra: str = ""
    chat: str = ""
    api_key: str = ""
    stats_file: Path | None = None


class EmulatedServer:
    """State and handlers of one server; create it inside the running event loop."""

    def __init__(self, options: Options, faults: Faults) -> None:
        self.options, self.faults = options, faults
        self.batch = Batch(options.slots, options.pace)
        self.stats = Stats(options.stats_file)
        self.live: set[str] = set()
        self.draining = asyncio.Event()
        self.started = time.time()
        self.finished_tokens = {"prompt": 0, "generation": 0}
        folder = options.tokenizer
        self.template = None if folder is None else Template(folder, options.template_extra)
        self.set_faults({})

    def app(self) -> web.Application:
        options = self.options
        guards = [keyed(options.api_key)] if options.api_key else []
        app = web.Application(client_max_size=MAX_BODY, middlewares=[self.count_request, *guards])
        app.add_routes(
            [
                web.get("/stats", self.show_stats),
                web.post("/faults", self.post_faults),
                web.delete("/faults", self.clear_faults),
            ]
        )
        if options.chat and self.template is not None:
            chat = Chat(
                options.chat, options.model, options.context_length, self.template, self.answer
            )
            chat.add_routes(app)
        if options.chat == VLLM:
            return app
        app.add_routes(
            [
                web.post("/generate", self.generate),
                web.get("/health", self.health),
                web.get("/health_generate", self.health),
                web.get("/ready", self.health),
                web.get("/server_info", self.server_info),
                web.get("/get_server_info", self.server_info),
                web.get("/model_info", self.model_info),
                web.get("/metrics", self.metrics),
                web.post("/abort_request", self.abort_request),
                web.post("/v1/tokenize", self.tokenize),
            ]
        )
        return app

    @web.middleware
    async def count_request(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """Count the requests by path, and those that carry a key."""
        self.stats.requests[request.path] += 1
        if "Authorization" in request.headers:
            self.stats.keyed[request.path] += 1
        response: web.StreamResponse = await handler(request)
        return response

    def set_faults(self, changes: dict[str, object]) -> None:
        self.faults = self.faults.changed(changes)
        self.batch.set_pace(slow=self.faults.slow, hang=self.faults.hang)

    async def drained(self) -> None:
        """Wait for SIGTERM and then for the last request, as the real server does: no limit."""
        await self.draining.wait()
        waits = [e.done for e in (*self.batch.running.values(), *self.batch.waiting)]
        while waits:
            await asyncio.wait(waits)
            waits = [e.done for e in (*self.batch.running.values(), *self.batch.waiting)]

    # -- /generate ---------------------------------------------------------------------------

    async def generate(self, request: web.Request) -> web.StreamResponse:
        return await self.answer(request, await request.json())

    async def answer(self, request: web.Request, body: Any) -> web.StreamResponse:
        try:
            accepted = parse_generate(body, self.live, self.stats.received)
        except ValueError as exc:
            return refusal(str(exc))
        self.stats.note("received", accepted.rid, accepted.hash, tokens=len(accepted.ids))
        length = len(accepted.ids)
        if self.faults.errs(length):
            self.stats.note("failed", accepted.rid, accepted.hash, fault="every_status")
            return fail(self.faults)
        refused = shapes.too_long(length, accepted.max_new_tokens, self.options.context_length)
        seed = self.options.voice.seed
        content = self.faults.content(accepted.hash, seed, length)
        if how := self.faults.refusal(content, accepted.ids):
            self.stats.note("refused", accepted.rid, accepted.hash, fault="refused")
            return refuse_for_ever(request, how, self.faults, streamed=bool(accepted.every))
        if content == "http_400":
            refused = "the emulated engine refuses this prompt"
        if refused is not None:
            self.stats.note("refused", accepted.rid, accepted.hash)
            if accepted.every:
                return await Stream(request, accepted.every).refuse(refused)
            return refusal(refused)
        transient = self.faults.transient(accepted.hash, seed, accepted.tries)
        if transient in ("http_500", "http_503"):
            self.stats.note("failed", accepted.rid, accepted.hash, fault=transient)
            return http_error(int(transient[-3:]), self.faults)
        return await self._serve(request, accepted, content, transient)

    async def _serve(
        self, request: web.Request, accepted: GenerateRequest, content: str, transient: str
    ) -> web.StreamResponse:
        answer = self.options.voice.answer(
            accepted.ids, accepted.max_new_tokens, "" if content == "hang_requests" else content
        )
        length = math.inf if content == "hang_requests" else len(answer.ids)
        if transient in ("abort", "reset"):
            length = max(1, len(answer.ids) // 2)
        stream = Stream(request, accepted.every) if accepted.every else None
        outcome = await self._decode(accepted, length, answer, stream)
        if transient == "reset":
            self.stats.note("failed", accepted.rid, accepted.hash, fault=transient)
            assert request.transport is not None
            request.transport.abort()
            return web.Response(status=500)
        if transient == "garbage":
            self.stats.note("failed", accepted.rid, accepted.hash, fault=transient)
            return garbage()
        aborted = outcome.aborted or transient == "abort"
        body = self._body(accepted, answer, outcome, aborted)
        if transient == "altered_prompt" and accepted.echo:
            body["prompt_token_ids"] = [*accepted.ids[:-1], accepted.ids[-1] + 1]
        reply = self._reply(accepted, body, aborted, fault=content or transient)
        return reply if stream is None else await stream.end(body)

    async def _decode(
        self, accepted: GenerateRequest, length: float, answer: Answer, stream: Stream | None
    ) -> Outcome:
        loop = asyncio.get_running_loop()
        entry = Entry(
            accepted.rid, len(accepted.ids), length, loop.create_future(), received=loop.time()
        )
        if self.faults.is_poison(accepted.hash, accepted.ids):
            entry.on_start = lambda: self._die_soon(self.faults.poison_delay_s)
        self.live.add(accepted.rid)
        try:
            self.batch.submit(entry)
            while stream is not None and not entry.done.done():
                await asyncio.wait({entry.done}, timeout=POLL_S)
                made = self.batch.made(entry)
                if not entry.done.done() and stream.due(made):
                    await stream.send(
                        shapes.piece(accepted.rid, answer.ids[stream.sent : made], made)
                    )
            # Cancelled: the client went away.
            return await asyncio.shield(entry.done)
        except asyncio.CancelledError:
            if self.faults.deaf_to_disconnects:
                await entry.done
                raise
            self.stats.note("dropped", accepted.rid, accepted.hash)
            self.batch.drop(entry)
            raise
        finally:
            self.live.discard(accepted.rid)

    def _body(
        self, accepted: GenerateRequest, answer: Answer, outcome: Outcome, aborted: bool
    ) -> dict[str, Any]:
        ids = answer.ids[: outcome.made] if aborted else answer.ids
        finish = shapes.abort_finish() if aborted else answer.finish
        if outcome.queued_s is None:
            finish = {"type": "abort", "message": "Abort in waiting queue"}
        speculative = 2.6 + 1.2 * unit(accepted.hash, "accept")
        body = shapes.generated(
            rid=accepted.rid,
            ids=ids,
            finish=finish,
            prompt_tokens=len(accepted.ids),
            accept_length=speculative if self.options.speculation else None,
            received=accepted.received,
            latency=time.time() - accepted.received,
            queued=outcome.queued_s or 0.0,
        )
        if accepted.echo:
            body["prompt_token_ids"] = accepted.ids
        return body

    def _reply(
        self, accepted: GenerateRequest, body: dict[str, Any], aborted: bool, fault: str
    ) -> web.Response:
        self.finished_tokens["prompt"] += len(accepted.ids)
        self.finished_tokens["generation"] += len(body["output_ids"])
        event = "aborted" if aborted else "answered"
        self.stats.note(
            event, accepted.rid, accepted.hash, ids=len(body["output_ids"]), fault=fault
        )
        if self.stats.totals["answered"] == self.faults.crash_after:
            _die()
        return web.json_response(body)

    def _die_soon(self, delay: float) -> None:
        if delay:
            asyncio.get_running_loop().call_later(delay, _die)
        else:
            _die()

    # -- the other routes --------------------------------------------------------------------

    async def health(self, _request: web.Request) -> web.Response:
        sick = self.faults.health_503 or self.draining.is_set()
        return web.Response(status=503 if sick else 200)

    async def server_info(self, _request: web.Request) -> web.Response:
        options = self.options
        body = shapes.server_info(
            model=options.model,
            context_length=options.context_length,
            slots=options.slots,
            speculation=options.speculation,
            started=self.started,
        )
        return web.json_response({**body, **options.server_info})

    async def model_info(self, _request: web.Request) -> web.Response:
        return web.json_response(shapes.model_info(self.options.model))

    async def metrics(self, _request: web.Request) -> web.Response:
        """The real meaning: `generation_tokens_total` grows only when a request ends, the decode
        mode of `realtime_tokens_total` with every step."""
        if self.faults.no_metrics:
            return web.Response(status=404)
        decoded, batch = self.batch.live_generated(), self.batch
        gauges = {
            "num_running_reqs": len(batch.running),
            "num_queue_reqs": len(batch.waiting),
            "token_usage": len(batch.running) / batch.slots,
            "full_token_usage": len(batch.running) / batch.slots,
            "mamba_usage": len(batch.running) / batch.slots,
            "gen_throughput": 0.0,
            "spec_accept_length": 3.2 if self.options.speculation else 0.0,
            "spec_accept_rate": 0.73 if self.options.speculation else 0.0,
            "max_total_num_tokens": batch.slots * self.options.context_length,
        }
        totals = self.stats.totals
        counters = {
            "prompt_tokens_total": self.finished_tokens["prompt"],
            "generation_tokens_total": self.finished_tokens["generation"],
            "num_requests_total": totals["answered"] + totals["aborted"],
            "num_aborted_requests_total": totals["aborted"],
            "num_retracted_requests_total": self.faults.retracted,
            "queue_time_seconds_sum": batch.queue_s,
            "queue_time_seconds_count": batch.queued_ever,
            "realtime_tokens_total|decode": decoded,
        }
        return web.Response(text=shapes.metrics_text(self.options.model, gauges, counters))

    async def abort_request(self, request: web.Request) -> web.Response:
        body = await request.json()
        rid = body.get("rid") or ""
        if body.get("abort_all") or rid:
            self.batch.abort("" if body.get("abort_all") else rid)
        return web.Response()

    async def tokenize(self, request: web.Request) -> web.Response:
        if self.options.tokenizer is None:  # as on a server that has no such route
            return web.Response(status=404)
        if self.faults.rendering == "refused":
            return refusal("the emulated engine renders no conversation")
        body = await request.json()
        assert self.template is not None
        try:
            ids = [] if self.faults.rendering == "empty" else self.template.tokens(body)
        except jinja2.TemplateError as exc:
            return refusal(str(exc))
        limit = self.options.context_length
        return web.json_response({"tokens": ids, "count": len(ids), "max_model_len": limit})

    async def show_stats(self, request: web.Request) -> web.Response:
        """Ours, not SGLang's. `slot_seconds`: the integral of running requests over time;
        two answers subtracted give any window. `busy_fraction`: since the first request."""
        batch, stats = self.batch, self.stats
        batch.advance()
        first = stats.first_received
        window = 0.0 if first is None else time.monotonic() - first
        names = ("received", "answered", "aborted", "refused", "failed", "dropped")
        body: dict[str, Any] = {name: stats.totals[name] for name in names}
        body |= {
            "running": len(batch.running),
            "queued": len(batch.waiting),
            "slots": batch.slots,
            "generated": batch.live_generated(),
            "clock_s": time.monotonic(),
            "window_s": window,
            "slot_seconds": batch.slot_seconds,
            "saturated_seconds": batch.saturated_seconds,
            "busy_fraction": batch.slot_seconds / (batch.slots * window) if window else 0.0,
        }
        body |= {"requests": dict(stats.requests), "keyed": dict(stats.keyed)}
        if request.query.get("prompts") != "0":
            body["prompts"] = stats.prompts()
        return web.json_response(body)

    async def post_faults(self, request: web.Request) -> web.Response:
        """Change the named faults, leave the others; answers all of them."""
        try:
            self.set_faults(await request.json())
        except ValidationError as exc:
            return refusal(str(exc))
        return web.json_response(self.faults.model_dump())

    async def clear_faults(self, _request: web.Request) -> web.Response:
        self.set_faults(Faults().model_dump())
        return web.json_response(self.faults.model_dump())


def _die() -> None:
    """End as a crashed SGLang does: killed by its own watchdog, no answer to anyone."""
    os.kill(os.getpid(), signal.SIGKILL)


def show_json(text: str) -> dict[str, Any]:
    """A JSON object given on the command line; ValueError when it is none."""
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value
