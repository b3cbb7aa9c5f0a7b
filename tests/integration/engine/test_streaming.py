"""Long generations come in pieces, so that one that loops is ended early and its slot is free."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator

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
from dflashq.engine.request import TokenObserver
from tests.support.engine_emulator import EmulatedEngine
from tests.support.sglang import renderer_of
from tests.support.wait import WAIT_S

LONG = Sampling(max_new_tokens=4000)
ABORTED = "sglang:num_aborted_requests_total"


class EnoughError(Exception):
    """What the watch of a test ends a generation with."""


@pytest.fixture(scope="module")
def engine() -> Iterator[EmulatedEngine]:
    with EmulatedEngine(lengths="fixed:900", token_ms=1) as engine:
        yield engine


@pytest.fixture(autouse=True)
def _no_faults(engine: EmulatedEngine) -> Iterator[None]:
    yield
    engine.set_faults()


def ask(
    url: str, watch: TokenObserver | None, *, every: int = 200, sampling: Sampling = LONG
) -> Generation:
    async def scene() -> Generation:
        async with SGLangClient(url, stream_every=every) as client:
            return await client.generate([1500, 1501], sampling, "dfq-s", [2], watch=watch)

    return asyncio.run(scene())


def test_pieces_are_the_answer(engine: EmulatedEngine) -> None:
    sizes: list[int] = []
    pieces = ask(engine.url, lambda ids: sizes.append(len(ids)))
    whole = ask(engine.url, None)
    assert pieces.output_ids == whole.output_ids
    assert (pieces.finish_reason, pieces.matched) == ("stop", 2)
    assert pieces.spec_accept_length == whole.spec_accept_length
    assert sizes == sorted(sizes)
    assert 3 <= len(sizes) <= 6


def test_the_watch_ends_it_and_the_slot_is_free(engine: EmulatedEngine) -> None:
    engine.set_faults(hang_requests=1.0, deaf_to_disconnects=True)

    def watch(ids: list[int]) -> None:
        raise EnoughError(len(ids))

    async def scene() -> None:
        async with SGLangClient(engine.url, stream_every=200) as client:
            with pytest.raises(EnoughError):
                await client.generate([1500], LONG, "dfq-enough", [2], watch=watch)
            async with asyncio.timeout(WAIT_S):
                while (await client.metrics())["sglang:num_running_reqs"]:
                    await asyncio.sleep(0.01)

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("every", "sampling", "watched"),
    [(0, LONG, True), (200, Sampling(max_new_tokens=400), True), (200, LONG, False)],
)
def test_what_need_not_be_streamed_is_not(
    engine: EmulatedEngine, every: int, sampling: Sampling, watched: bool
) -> None:
    sizes: list[int] = []
    watch = (lambda ids: sizes.append(len(ids))) if watched else None
    assert ask(engine.url, watch, every=every, sampling=sampling).output_ids
    assert sizes == []


def test_a_refusal_of_a_stream_is_a_refusal(engine: EmulatedEngine) -> None:
    engine.set_faults(http_400=1.0)
    with pytest.raises(EngineRefusedError, match="refuses this prompt"):
        ask(engine.url, lambda _: None)
    engine.set_faults(http_400=0.0, http_503=1.0)
    with pytest.raises(EngineRequestError, match="HTTP 503"):
        ask(engine.url, lambda _: None)


def test_a_killed_engine_is_down() -> None:
    async def scene(engine: EmulatedEngine) -> None:
        begun = asyncio.Event()
        async with SGLangClient(engine.url, stream_every=10) as client:
            task = asyncio.create_task(
                client.generate([7], LONG, "dfq-k", [2], watch=lambda _: begun.set())
            )
            await asyncio.wait_for(begun.wait(), WAIT_S)
            engine.kill()
            with pytest.raises(EngineDownError) as caught:
                await task
            assert caught.value.delivered

    with EmulatedEngine(lengths="fixed:3000", token_ms=5) as engine:
        asyncio.run(scene(engine))


FIRST = {"output_ids": [5, 6], "meta_info": {"finish_reason": None}, "prompt_token_ids": [1]}
LAST = {
    "output_ids": [2],
    "meta_info": {"finish_reason": {"type": "stop", "matched": 2}, "completion_tokens": 3},
    "prompt_token_ids": [1],
}


def piece(row: object) -> bytes:
    return b"data: " + json.dumps(row).encode() + b"\n\n"


def failure(code: int) -> bytes:
    """How SGLang tells of an error in a stream: HTTP 200 all the same."""
    return piece({"error": {"message": "too long", "code": code, "retryable": False}})


def streaming(*chunks: bytes) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
            await asyncio.sleep(0.01)
        await response.write_eof()
        return response

    return handle


def served(*chunks: bytes) -> Generation:
    async def scene() -> Generation:
        app = web.Application()
        app.router.add_post("/generate", streaming(*chunks))
        app.router.add_post("/abort_request", streaming())
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            async with SGLangClient(url, stream_every=100) as client:
                return await client.generate([1], LONG, "dfq-x", [2], watch=lambda _: None)
        finally:
            await runner.cleanup()

    return asyncio.run(scene())


def test_pieces_may_be_cut_anywhere() -> None:
    body = piece(FIRST) + piece(LAST) + b"data: [DONE]\n\n"
    cut = [body[i : i + 7] for i in range(0, len(body), 7)]
    assert served(*cut).output_ids == [5, 6, 2]


@pytest.mark.parametrize(
    ("chunks", "kind", "sentence"),
    [
        ([piece(FIRST)], EngineRequestError, "ended before the answer did"),
        ([piece(FIRST), b"data: {cut\n\n"], EngineRequestError, "is no JSON"),
        ([piece({"error": {"message": "no room"}})], EngineRequestError, "broke off: no room"),
        ([piece(FIRST), failure(500)], EngineRequestError, "HTTP 500 .* too long"),
        ([failure(400)], EngineRefusedError, "HTTP 400 .* too long"),
        ([piece({**FIRST, "output_ids": ["a"]})], EngineRequestError, "no list of token ids"),
        # Without --incremental-streaming-output every piece begins at the first id.
        (
            [piece(FIRST), piece({**LAST, "output_ids": [5, 6, 2]})],
            EngineRequestError,
            "counts 3 tokens and carries 5",
        ),
    ],
)
def test_a_stream_that_is_no_sample(
    chunks: list[bytes], kind: type[EngineError], sentence: str
) -> None:
    with pytest.raises(kind, match=sentence):
        served(*chunks)


@pytest.mark.sglang
def test_a_real_sglang_streams_exact_ids(sglang_server: str) -> None:
    async def scene() -> None:
        async with SGLangClient(sglang_server, stream_every=50) as client:
            renderer = renderer_of(sglang_server)
            messages = [{"role": "user", "content": "What is 12 + 30?"}]
            ids = renderer.render(messages, None, thinking=True)
            greedy = Sampling(temperature=0.0, max_new_tokens=300)
            sizes: list[int] = []
            ends = renderer.markers().end_ids
            pieces = await client.generate(
                ids, greedy, "dfq-pieces-1", ends, watch=lambda ids: sizes.append(len(ids))
            )
            whole = await client.generate(ids, greedy, "dfq-pieces-2", ends)
            assert pieces.output_ids == whole.output_ids
            assert (pieces.finish_reason, pieces.matched) == (whole.finish_reason, whole.matched)
            assert sizes

            def enough(ids: list[int]) -> None:
                raise EnoughError(len(ids))

            over = Sampling(max_new_tokens=100_000)
            with pytest.raises(EngineRefusedError, match="maximum context length"):
                await client.generate(ids, over, "dfq-pieces-4", ends, watch=enough)
            before = (await client.metrics()).get(ABORTED, 0.0)
            with pytest.raises(EnoughError):
                await client.generate(ids, greedy, "dfq-pieces-3", ends, watch=enough)
            async with asyncio.timeout(WAIT_S):
                while (await client.metrics()).get(ABORTED, 0.0) == before:
                    await asyncio.sleep(0.1)

    asyncio.run(scene())
