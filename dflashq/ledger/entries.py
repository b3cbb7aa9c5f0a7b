"""Kept entries: what is finished of a batch, as fields of its kept hash in Redis."""

from __future__ import annotations

import json

from dflashq.core import codec
from dflashq.core.model import Generation, Verdict
from dflashq.ledger.records import Kept

KeptEntry = tuple[str, bytes]


def generation_entry(index: int, slot: int, generation: Generation) -> KeptEntry:
    """A generation as `keep` stores it; `core.model.slot` numbers a turn and its retries."""
    line = codec.encode_generated(generation.to_json())
    return f"{index}:{slot}", codec.compress(line, codec.BRISK)


def verdict_entry(index: int, verdict: Verdict) -> KeptEntry:
    """The verdict on a prompt as `keep` stores it."""
    row = {"reason": verdict.reason, "detail": verdict.detail}
    return f"{index}:v", codec.compress(codec.encode_line(row), codec.BRISK)


def strike_entry(index: int, number: int) -> KeptEntry:
    """The engine's n-th death while this prompt was in flight, as `keep` stores it."""
    return f"{index}:s{number}", b"1"


def decode_kept(raw: dict[bytes, bytes]) -> Kept:
    """The fields of a kept hash: `index:slot`, `index:v`, `index:sN`, and `bytes` (its size)."""
    kept = Kept()
    for field, payload in raw.items():
        index, _, part = field.decode().partition(":")
        if not part:
            continue
        kept.entries[field.decode()] = payload
        if part.startswith("s"):
            kept.strikes[int(index)] = max(kept.strikes.get(int(index), 0), int(part[1:]))
            continue
        row = json.loads(codec.decompress(payload))
        if part == "v":
            kept.verdicts[int(index)] = Verdict(**row)
        else:
            kept.generations[int(index), int(part)] = Generation.from_json(row)
    return kept
