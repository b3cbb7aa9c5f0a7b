"""Requests of a test to an emulated engine."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import requests

from tests.support.engine_emulator.launch import EmulatedEngine
from tests.support.wait import WAIT_S

END, CLOSE = 2, 9
Row = dict[str, Any]


def body(ids: list[int], *, limit: int = 200, rid: str | None = None, **more: Any) -> Row:
    sampling = {"max_new_tokens": limit, "temperature": 1.0, "stop_token_ids": [END]}
    out: Row = {"input_ids": ids, "sampling_params": sampling, "return_prompt_token_ids": True}
    return out | ({} if rid is None else {"rid": rid}) | more


def ask(engine: EmulatedEngine, ids: list[int], **more: Any) -> requests.Response:
    return requests.post(f"{engine.url}/generate", json=body(ids, **more), timeout=WAIT_S)


def ask_many(engine: EmulatedEngine, prompts: list[list[int]], **more: Any) -> list[Row]:
    async def run() -> list[Row]:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:

            async def post(ids: list[int]) -> Row:
                async with session.post(
                    f"{engine.url}/generate", json=body(ids, **more)
                ) as response:
                    row: Row = await response.json()
                    return row

            return list(await asyncio.gather(*(post(ids) for ids in prompts)))

    return asyncio.run(run())


def metric(engine: EmulatedEngine, name: str) -> float:
    for line in requests.get(f"{engine.url}/metrics", timeout=WAIT_S).text.splitlines():
        if line.startswith(f"sglang:{name}{{") or (
            "|" in name
            and line.startswith(f"sglang:{name.split('|', maxsplit=1)[0]}{{")
            and f'mode="{name.split("|")[1]}"' in line
        ):
            return float(line.rpartition(" ")[2])
    raise AssertionError(f"no metric {name}")
