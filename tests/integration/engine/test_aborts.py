"""A request that nobody waits for any more is aborted, so that its slot is free at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from dflashq.core.errors import EngineDownError, EngineRequestError
from dflashq.core.model import Sampling
from dflashq.engine.chat_renderer import ChatRenderer
from dflashq.engine.dialects.openai import OpenAIClient
from dflashq.engine.dialects.sglang import SGLangClient
from dflashq.engine.request import Conversation
from tests.support.engine_emulator import EmulatedEngine
from tests.support.engine_emulator.profile import token_options
from tests.support.wait import WAIT_S

CONVERSATION = Conversation([{"role": "user", "content": "Tell me all."}], None, True)


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> Iterator[EmulatedEngine]:
    """Four slots; like the real server it does not notice at once that a client went away."""
    options = token_options(tiny_model) | {"model": "tiny", "tokenizer": tiny_model}
    with EmulatedEngine(
        **options,
        slots=4,
        lengths="fixed:5000",
        token_ms=10,
        chat="sglang",
        faults={"deaf_to_disconnects": True},
    ) as engine:
        yield engine


async def running(client: SGLangClient, count: int) -> None:
    """Until so many requests run in the engine."""
    async with asyncio.timeout(WAIT_S):
        while (await client.metrics())["sglang:num_running_reqs"] != count:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("dialect", ["sglang", "openai"])
def test_a_cancelled_request_frees_its_slot(
    engine: EmulatedEngine, tiny_model: Path, dialect: str
) -> None:
    renderer = ChatRenderer(tiny_model)
    ids = renderer.render(CONVERSATION.messages, None, thinking=True)

    async def scene() -> None:
        native, chat = SGLangClient(engine.url), OpenAIClient(engine.url, "tiny")
        async with native, chat:
            client = native if dialect == "sglang" else chat
            tasks = [
                asyncio.create_task(
                    client.generate(ids, Sampling(), f"dfq-{dialect}-{n}", {2}, CONVERSATION)
                )
                for n in range(4)
            ]
            await running(native, 4)
            tasks[1].cancel()
            await running(native, 3)
            for task in tasks:
                task.cancel()
            await running(native, 0)
            await asyncio.gather(*tasks, return_exceptions=True)
            assert all(task.cancelled() for task in tasks)

    asyncio.run(scene())


def test_closing_the_client_lets_its_aborts_out(engine: EmulatedEngine) -> None:
    """The last thing before a worker ends: cancelled, then closed at once."""

    async def scene() -> None:
        async with SGLangClient(engine.url) as watcher:
            async with SGLangClient(engine.url) as client:
                task = asyncio.create_task(client.generate([5, 6], Sampling(), "dfq-last", {2}))
                await running(watcher, 1)
                task.cancel()
                await asyncio.wait({task})
            await running(watcher, 0)
            assert task.cancelled()

    asyncio.run(scene())


def test_hanging_up_ends_what_is_under_way_and_nothing_else(engine: EmulatedEngine) -> None:
    async def scene() -> None:
        async with SGLangClient(engine.url) as client:
            tasks = [
                asyncio.create_task(client.generate([7, n], Sampling(), f"dfq-up-{n}", {2}))
                for n in range(3)
            ]
            await running(client, 3)
            await client.drop_requests()
            for task in tasks:
                with pytest.raises(EngineDownError) as caught:
                    await asyncio.wait_for(task, WAIT_S)
                assert caught.value.delivered
            await client.abort("dfq-up-")
            await running(client, 0)
            again = asyncio.create_task(client.generate([8], Sampling(), "dfq-again", {2}))
            await running(client, 1)
            await client.abort("dfq-again")
            with pytest.raises(EngineRequestError, match="aborted"):
                await again

    asyncio.run(scene())
