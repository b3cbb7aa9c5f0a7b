"""The request to `/generate`, checked as the real server's contract does."""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from tests.support.engine_emulator import shapes
from tests.support.engine_emulator.answers import prompt_hash


@dataclass(slots=True)
class GenerateRequest:
    """One accepted request. `tries` counts those for its prompt; `every`: ids in a piece, or 0."""

    rid: str
    ids: list[int]
    hash: str
    max_new_tokens: int
    echo: bool
    tries: int
    received: float
    every: int


def parse_generate(
    body: Any, live: Collection[str], received: Mapping[str, int]
) -> GenerateRequest:
    """Check a request; ValueError with the sentence of a refusal.

    `live`: the ids of the requests under way. `received`: requests so far, by prompt hash.
    """
    if not isinstance(body, dict):
        raise ValueError("the body is no JSON object")
    sampling = body.get("sampling_params") or {}
    for fields, known in ((body, shapes.GENERATE_FIELDS), (sampling, shapes.SAMPLING_FIELDS)):
        unknown = sorted(set(fields) - known)
        if unknown:
            raise ValueError(f"unknown field: {', '.join(unknown)}")
    ids = body.get("input_ids")
    if body.get("text") is not None:
        raise ValueError("the emulated engine takes input_ids only")
    every = sampling.get("stream_interval") or 0
    if body.get("stream") and every < 2:
        raise ValueError("the emulated engine streams with a stream_interval only")
    if not (isinstance(ids, list) and ids and all(type(i) is int and i >= 0 for i in ids)):
        raise ValueError("input_ids must be a list of at least one id")
    limit = sampling.get("max_new_tokens", 128)
    if type(limit) is not int or limit < 1:
        raise ValueError(f"max_new_tokens must be at least 1, got {limit!r}.")
    rid = body.get("rid") or uuid.uuid4().hex
    if rid in live:
        raise ValueError(f"Duplicate request ID detected: {rid}")
    key = prompt_hash(ids)
    return GenerateRequest(
        rid=rid,
        ids=ids,
        hash=key,
        max_new_tokens=limit,
        echo=bool(body.get("return_prompt_token_ids")),
        tries=received.get(key, 0) + 1,
        received=time.time(),
        every=every if body.get("stream") else 0,
    )
