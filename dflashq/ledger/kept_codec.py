"""Kept entries: what is finished of a batch, as fields of its kept hash in Redis."""

from __future__ import annotations

import json

import numpy as np
import orjson
import zstandard

from dflashq.core import codec
from dflashq.core.model import Generation, Verdict
from dflashq.core.token_ids import NO_ID, id_array
from dflashq.ledger.models import Failure, Kept

KeptEntry = tuple[str, bytes]
_IDS = ("prompt_ids", "output_ids")
# What damaged bytes raise on their way through zstd, JSON and the records.
_DAMAGE = (ValueError, TypeError, KeyError, IndexError, AttributeError, zstandard.ZstdError)
_LONG = 500  # output ids from which on columns are quicker than JSON


def generation_field(index: int, slot: int) -> str:
    """Where a generation is kept; `core.model.slot` numbers a turn and its retries."""
    return f"{index}:{slot}"


def generation_entry(index: int, slot: int, generation: Generation) -> KeptEntry:
    """A generation as `keep` stores it."""
    return generation_field(index, slot), encode_generation(generation)


def encode_generation(generation: Generation) -> bytes:
    """The payload of a generation's entry."""
    return codec.compress(_packed(generation), codec.BRISK)


def read_generation(payload: bytes) -> Generation:
    """The generation of an entry, its ids as arrays; ValueError when it is damaged."""
    line, _, rest = codec.decompress(payload).partition(b"\n")
    row = orjson.loads(line)
    if isinstance(row["output_ids"], list):
        return Generation.from_json(row)
    ids = np.ascontiguousarray(np.frombuffer(rest, np.uint8).reshape(4, -1).T).view("<u4").ravel()
    prompt, output = (row[name] for name in _IDS)
    if len(ids) != prompt + output:
        raise ValueError(f"{len(ids)} ids are kept where {prompt} + {output} should be")
    return Generation.from_json(row | {"prompt_ids": ids[:prompt], "output_ids": ids[prompt:]})


def _packed(generation: Generation) -> bytes:
    """A JSON line with the numbers of ids in the place of the ids, and those behind it.

    First the lowest bytes of all, then the second ones, and so on: that compresses as well as JSON
    does, in a third of the time. Short outputs stay JSON, and what is no id at all (it will be
    judged corrupt).
    """
    row = generation.to_json()
    if len(generation.output_ids) < _LONG:
        return codec.encode_generated(row)
    ids = np.concatenate([id_array(generation.prompt_ids), generation.output_array])
    if NO_ID in ids:
        return codec.encode_generated(row)
    for name in _IDS:
        row[name] = len(row[name])
    columns = ids.astype("<u4", copy=False).view(np.uint8).reshape(-1, 4).T
    return codec.encode_generated(row) + columns.tobytes()


def verdict_entry(index: int, verdict: Verdict) -> KeptEntry:
    """The verdict on a prompt as `keep` stores it."""
    row = {"reason": verdict.reason, "detail": verdict.detail}
    return f"{index}:v", codec.compress(codec.encode_line(row), codec.BRISK)


def strike_entry(index: int, number: int) -> KeptEntry:
    """The engine's n-th death while this prompt was in flight, as `keep` stores it."""
    return f"{index}:s{number}", b"1"


def failure_entry(index: int, failure: Failure) -> KeptEntry:
    """That an engine kept failing on this prompt, as `keep` stores it."""
    row = {"worker": failure.worker, "words": failure.words}
    return f"{index}:f", codec.compress(codec.encode_line(row), codec.BRISK)


def decode_kept(raw: dict[bytes, bytes]) -> Kept:
    """The fields of a kept hash: `index:slot`, `:v`, `:f`, `:sN`, and `bytes` (its size).

    One that cannot be read costs its own prompt's work only: it is left out and named.
    """
    kept = Kept()
    for name, payload in raw.items():
        field = name.decode(errors="replace")
        if ":" not in field:
            continue
        try:
            _decode(kept, field, payload)
        except _DAMAGE:
            kept.damaged.append(field)
        else:
            kept.entries[field] = payload
    return kept


def _decode(kept: Kept, field: str, payload: bytes) -> None:
    index, _, part = field.partition(":")
    if part.startswith("s"):
        kept.strikes[int(index)] = max(kept.strikes.get(int(index), 0), int(part[1:]))
    elif part == "v":
        row = json.loads(codec.decompress(payload))
        kept.verdicts[int(index)] = Verdict(row["reason"], row["detail"])
    elif part == "f":
        kept.failures[int(index)] = Failure(**json.loads(codec.decompress(payload)))
    else:
        kept.generations[int(index), int(part)] = read_generation(payload)
