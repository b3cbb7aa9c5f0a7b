"""Kept entries: the finished work of an unfinished batch, as fields of its kept hash in Redis.

The format version of the run (`core.schema`) covers them. Fields of a newer minor version are
ignored.
"""

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
# The errors that damaged bytes cause in zstd, in JSON and in the records.
_DAMAGE_ERRORS = (ValueError, TypeError, KeyError, IndexError, AttributeError, zstandard.ZstdError)
_MIN_COLUMN_IDS = 500  # output ids from which on columns are quicker than JSON


def generation_field(index: int, kept_slot: int) -> str:
    """The field of a generation; `core.model.kept_slot` numbers the turns and their retries."""
    return f"{index}:{kept_slot}"


def encode_generation(generation: Generation) -> bytes:
    """The payload of a generation's entry. Equal ids give equal bytes, as a list or an array."""
    return codec.compress(_uncompressed(generation), codec.FAST_LEVEL)


def decode_generation(payload: bytes) -> Generation:
    """The generation of an entry; ValueError (or KeyError, TypeError) when it is damaged.

    The ids of a long one are uint32 arrays, those of a short one lists.
    """
    line, _, columns = codec.decompress(payload).partition(b"\n")
    row = orjson.loads(line)
    if isinstance(row["output_ids"], list):
        return Generation.from_json(row)
    id_bytes = np.ascontiguousarray(np.frombuffer(columns, np.uint8).reshape(4, -1).T)
    ids = id_bytes.view("<u4").ravel()
    prompt, output = (row[name] for name in _IDS)
    if len(ids) != prompt + output:
        raise ValueError(f"{len(ids)} ids are kept where {prompt} + {output} should be")
    return Generation.from_json(row | {"prompt_ids": ids[:prompt], "output_ids": ids[prompt:]})


def _uncompressed(generation: Generation) -> bytes:
    """A JSON line that has the number of ids where the ids were, and behind it the ids as bytes.

    The bytes are in four columns: the lowest byte of every id, then the second byte of every id,
    and so on, which compresses as well as JSON does, in a third of the time. A short output stays
    JSON, and so does one with a number that is no id: its verdict will be `corrupt`.
    """
    row = generation.to_json()
    if len(generation.output_ids) < _MIN_COLUMN_IDS:
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
    return f"{index}:v", codec.compress(codec.encode_line(row), codec.FAST_LEVEL)


def strike_entry(index: int, number: int) -> KeptEntry:
    """The `number`-th death of an engine while this prompt was in flight, as `keep` stores it."""
    return f"{index}:s{number}", b"1"


def failure_entry(index: int, failure: Failure) -> KeptEntry:
    """A record that an engine kept failing on this prompt, as `keep` stores it."""
    row = {"worker": failure.worker, "words": failure.words}
    return f"{index}:f", codec.compress(codec.encode_line(row), codec.FAST_LEVEL)


def decode_kept(raw: dict[bytes, bytes]) -> Kept:
    """The fields of a kept hash: `index:kept_slot`, `:v`, `:f`, `:sN`, and `bytes` (its size).

    A field that cannot be read is left out and named in `damaged`: only its own prompt is
    generated again.
    """
    kept = Kept()
    for name, payload in raw.items():
        field = name.decode(errors="replace")
        if ":" not in field:
            continue
        try:
            _decode(kept, field, payload)
        except _DAMAGE_ERRORS:
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
        row = json.loads(codec.decompress(payload))
        kept.failures[int(index)] = Failure(row["worker"], row["words"])
    else:
        kept.generations[int(index), int(part)] = decode_generation(payload)
