"""The baseline of `client`: `python -m tests.benchmarks.baseline_loop URL COUNT IN_FLIGHT TOKENS`.

Does the least that an aiohttp client can do: posts the same requests, reads and parses the answers,
checks and keeps nothing. Prints the CPU seconds from the first request to the last answer.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
import time

import aiohttp

from dflashq.core.model import Sampling
from dflashq.engine.dialects.sglang import generate_body


async def measure_cpu_s(url: str, count: int, in_flight: int, tokens: int) -> float:
    """CPU seconds of `count` generations, `in_flight` at a time."""
    bodies = [_body(number, tokens) for number in range(count)]
    slots = asyncio.Semaphore(in_flight)
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None)
    ) as session:

        async def generate(body: bytes) -> int:
            async with slots, session.post(f"{url}/generate", data=body, headers=JSON) as answer:
                return len(json.loads(await answer.read())["output_ids"])

        began = time.process_time()
        counts = await asyncio.gather(*(generate(body) for body in bodies))
        used = time.process_time() - began
    assert min(counts) == tokens, min(counts)
    return used


JSON = {"Content-Type": "application/json"}


def _body(number: int, tokens: int) -> bytes:
    sampling = Sampling(max_new_tokens=tokens + 100)
    prompt = [1 + number % 90, *range(100, 125), number // 90]
    return json.dumps(
        generate_body(prompt, sampling, f"bare-{secrets.token_hex(16)}", [2])
    ).encode()


if __name__ == "__main__":
    url, *numbers = sys.argv[1:]
    print(asyncio.run(measure_cpu_s(url, *map(int, numbers))))  # noqa: T201
