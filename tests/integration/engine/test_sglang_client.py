"""The client against a server that answers as told: every failure becomes the right error."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from aiohttp import web

from dflashq.core.errors import (
    EngineDownError,
    EngineError,
    EngineRefusedError,
    EngineRequestError,
)
from dflashq.core.model import Generation, Sampling
from dflashq.engine.dialects.sglang import SGLangClient
from dflashq.engine.http_session import retry_after_s
from dflashq.engine.stats import parse_metrics
from tests.support.engine_emulator import EmulatedEngine

PROMPT, ENDS = [5, 6, 7], {9, 2}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def good(**changes: Any) -> dict[str, Any]:
    """A well-formed answer to PROMPT; `changes` go to the top level or into meta_info."""
    meta = {
        "id": "r",
        "finish_reason": {"type": "stop", "matched": 2},
        "completion_tokens": 3,
        "spec_accept_length": 3.25,
        "e2e_latency": 1.5,
    }
    row: dict[str, Any] = {"text": "x", "output_ids": [11, 12, 2], "prompt_token_ids": PROMPT}
    row |= {k: v for k, v in changes.items() if k in row}
    row["meta_info"] = meta | {k: v for k, v in changes.items() if k not in row}
    return row


def answering(row: Any, status: int = 200) -> Handler:
    async def handle(_: web.Request) -> web.Response:
        return web.Response(body=row if isinstance(row, bytes) else json.dumps(row), status=status)

    return handle


@asynccontextmanager
async def serving(handler: Handler, path: str = "/generate") -> AsyncIterator[SGLangClient]:
    app = web.Application()
    app.router.add_route("*", path, handler)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        async with SGLangClient(f"http://127.0.0.1:{port}/") as client:
            yield client
    finally:
        await runner.cleanup()


def ask(handler: Handler, sampling: Sampling | None = None) -> Generation:
    async def scene() -> Generation:
        async with serving(handler) as client:
            return await client.generate(PROMPT, sampling or Sampling(), "dfq-0001", ENDS)

    return asyncio.run(scene())


def test_everything_is_spelled_out() -> None:
    received: dict[str, Any] = {}

    async def handle(request: web.Request) -> web.Response:
        received.update(await request.json())
        return web.json_response(good())

    sampling = Sampling(temperature=0.6, top_p=0.9, top_k=-1, min_p=0.1, max_new_tokens=77)
    ask(handle, sampling)
    assert received == {
        "input_ids": PROMPT,
        "rid": "dfq-0001",
        "stream": False,
        "return_logprob": False,
        "return_prompt_token_ids": True,
        "sampling_params": {
            "temperature": 0.6,
            "top_p": 0.9,
            "top_k": -1,
            "min_p": 0.1,
            "max_new_tokens": 77,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "repetition_penalty": 1.0,
            "stop_token_ids": [2, 9],
            "no_stop_trim": True,
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
        },
    }


def test_a_stop_and_a_length() -> None:
    assert ask(answering(good())) == Generation(PROMPT, [11, 12, 2], "stop", 2, 3.25, 1.5)
    nan = good(finish_reason={"type": "stop", "matched": "NaN happened"})
    assert ask(answering(nan)).matched == "NaN happened"
    length = good(finish_reason={"type": "length", "length": 3}, spec_accept_length=None)
    assert ask(answering(length)) == Generation(PROMPT, [11, 12, 2], "length", None, None, 1.5)


ABORT = {"type": "abort", "message": "Aborted", "status_code": None}


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        (good(finish_reason=ABORT), "aborted the request: Aborted"),
        (good(finish_reason=None), "finish_reason is no object"),
        (good(finish_reason={"type": "eos"}), "finish reason is 'eos'"),
        (good(output_ids=None), "output_ids is no list of token ids"),
        (good(output_ids=[11, 12.0, 2]), "output_ids is no list of token ids"),
        (good(output_ids=[11, True, 2]), "output_ids is no list of token ids"),
        (good(output_ids=[11, 2]), "counts 3 tokens and carries 2"),
        (good(completion_tokens=None), "counts None tokens"),
        (good(prompt_token_ids=[5, 6, 8]), "prompt_token_ids differ"),
        (good(prompt_token_ids=None), "prompt_token_ids differ"),
        ({"output_ids": [1]}, "meta_info is no object"),
        ([good()], "/generate is no object"),
        (b'{"text": "cut of', "no JSON"),
        (b"\xff\xfe", "no JSON"),
    ],
)
def test_what_is_not_a_sample(row: Any, sentence: str) -> None:
    with pytest.raises(EngineRequestError, match=sentence):
        ask(answering(row))


NESTED = {"error": {"message": "The input (9031 tokens) is longer"}}
FLAT = {"object": "error", "message": "The input (9031 tokens) is longer", "code": 400}


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, EngineRefusedError),
        (413, EngineRefusedError),
        (422, EngineRefusedError),
        (408, EngineRequestError),
        (409, EngineRequestError),
        (425, EngineRequestError),
        (429, EngineRequestError),
        (500, EngineRequestError),
        (503, EngineRequestError),
        (307, EngineRequestError),
        (401, EngineRequestError),
        (403, EngineRequestError),
        (404, EngineRequestError),
        (451, EngineRequestError),
    ],
)
@pytest.mark.parametrize("body", [NESTED, FLAT, b"The input (9031 tokens) is longer"])
def test_statuses(status: int, kind: type[EngineError], body: Any) -> None:
    with pytest.raises(EngineError, match=r"The input \(9031 tokens\) is longer") as caught:
        ask(answering(body, status))
    assert type(caught.value) is kind
    assert f"HTTP {status}" in str(caught.value)


def test_no_server_is_down() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"

    async def scene() -> None:
        async with SGLangClient(url) as client:
            await client.generate(PROMPT, Sampling(), "r", ENDS)

    with pytest.raises(EngineDownError, match="dropped the request"):
        asyncio.run(scene())


@pytest.mark.parametrize(
    "sent", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", b"junk\r\n"]
)
def test_a_dropped_connection_is_down(sent: bytes) -> None:
    async def drop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(sent)
        await writer.drain()
        writer.close()

    async def scene() -> None:
        server = await asyncio.start_server(drop, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, SGLangClient(f"http://127.0.0.1:{port}") as client:
            await client.generate(PROMPT, Sampling(), "r", ENDS)

    with pytest.raises(EngineDownError):
        asyncio.run(scene())


def test_a_closed_client_says_so() -> None:
    with pytest.raises(EngineError, match="not open"):
        asyncio.run(SGLangClient("http://127.0.0.1:1").metrics())


def test_dropping_the_requests_of_a_closed_client_does_not_open_it() -> None:
    async def scene() -> None:
        client = SGLangClient("http://127.0.0.1:1")
        await client.open()
        await client.close()
        await client.drop_requests()
        await client.metrics()

    with pytest.raises(EngineError, match="not open"):
        asyncio.run(scene())


def test_metrics_are_summed_by_name_and_mode() -> None:
    text = (
        "# TYPE sglang:realtime_tokens_total counter\n"
        'sglang:realtime_tokens_total{mode="prefill_compute",rank="0"} 57.0\n'
        'sglang:realtime_tokens_total{engine="u",mode="decode"} 27.0\n'
        "sglang:num_running_reqs 3.0\n"
        'sglang:latency_bucket{le="1"} 9\n'
        "process_cpu_seconds_total 1\n"
    )
    assert parse_metrics(text) == {
        "sglang:realtime_tokens_total": 84.0,
        "sglang:realtime_tokens_total.prefill_compute": 57.0,
        "sglang:realtime_tokens_total.decode": 27.0,
        "sglang:num_running_reqs": 3.0,
    }


def test_against_the_emulated_engine() -> None:
    async def scene(url: str) -> None:
        async with SGLangClient(url) as client:
            generation = await client.generate([1500, 1501], Sampling(), "dfq-a", [2])
            assert generation.output_ids[-1] == generation.matched == 2
            assert generation.prompt_ids == [1500, 1501]
            slow = asyncio.create_task(client.generate([1502], Sampling(), "dfq-b", [2]))
            while (await client.metrics())["sglang:num_running_reqs"] == 0:
                assert not slow.done()
            await client.abort("dfq-b")
            with pytest.raises(EngineRequestError, match="aborted"):
                await slow
            long = Sampling(max_new_tokens=32768)
            with pytest.raises(EngineRefusedError, match="maximum context length"):
                await client.generate([1503], long, "dfq-c", [2])

    with EmulatedEngine(lengths="fixed:300", token_ms=10) as engine:
        asyncio.run(scene(engine.url))


def test_an_engine_killed_under_a_request_is_down() -> None:
    async def scene(engine: EmulatedEngine) -> None:
        async with SGLangClient(engine.url) as client:
            task = asyncio.create_task(client.generate([1500], Sampling(), "dfq-a", [2]))
            while (await client.metrics())["sglang:num_running_reqs"] == 0:
                assert not task.done()
            engine.kill()
            with pytest.raises(EngineDownError):
                await task

    with EmulatedEngine(lengths="fixed:3000", token_ms=10) as engine:
        asyncio.run(scene(engine))


def test_a_connection_is_used_again() -> None:
    peers = set()

    async def handle(request: web.Request) -> web.Response:
        assert request.transport is not None
        peers.add(request.transport.get_extra_info("peername"))
        return web.json_response(good())

    async def scene() -> None:
        async with serving(handle) as client:
            for _ in range(5):
                await client.generate(PROMPT, Sampling(), "dfq-0001", ENDS)
            assert len(peers) == 1
            await client.drop_requests()
            await client.generate(PROMPT, Sampling(), "dfq-0001", ENDS)
            assert len(peers) == 2

    asyncio.run(scene())


NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("", 0.0),
        ("30", 30.0),
        ("1.5", 1.5),
        ("-3", 0.0),
        ("nan", 0.0),
        ("inf", 0.0),
        ("86400", 3600.0),
        ("Thu, 01 Jan 2026 00:00:20 GMT", 20.0),
        ("Wed, 31 Dec 2025 00:00:00 GMT", 0.0),
        ("soon", 0.0),
    ],
)
def test_how_long_a_server_asks_to_wait(value: str, seconds: float) -> None:
    assert retry_after_s(value, NOW) == seconds
