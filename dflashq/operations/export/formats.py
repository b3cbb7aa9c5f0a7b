"""The formats that trainers read: a row of each, and the bytes of a shard."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from dflashq.core import codec
from dflashq.core.training_data import parquet
from dflashq.core.training_data.rows import Row

Sample = dict[str, Any]
Encode = Callable[[Row, Sample], dict[str, Any]]


class Shard(Protocol):
    """The bytes of one file, row by row, held in memory until it is closed."""

    def add(self, row: dict[str, Any]) -> None: ...

    def close(self) -> bytes: ...


class JsonLines:
    """Rows as JSON lines. They are encoded at once: lists of ids would take several times more."""

    def __init__(self) -> None:
        self._text = bytearray()

    def add(self, row: dict[str, Any]) -> None:
        self._text += codec.encode_line(row)

    def close(self) -> bytes:
        return bytes(self._text)


@dataclass(frozen=True, slots=True)
class Format:
    """One `--to`: the ending of its files, its shards, and how a row is encoded.

    `tokens`: its rows are exact ids, not text.
    """

    ending: str
    shard: Callable[[], Shard]
    encode: Encode
    tokens: bool = True


def _ids_and_mask(row: Row, _sample: Sample) -> dict[str, Any]:
    # No other key: a trainer may take one for an option of the chat template.
    return {"input_ids": row.input_ids, "loss_mask": row.loss_mask}


def _all_columns(row: Row, _sample: Sample) -> dict[str, Any]:
    return row.to_json()


def _conversation(row: Row, sample: Sample) -> dict[str, Any]:
    """The conversation up to this turn, the only one that is trained on.

    Every row has the same keys with the same types: a loader guesses the schema from the first rows
    and fails on one that differs. Earlier turns come without their thinking, as the model was shown
    them.
    """
    messages, turns = [], -1
    for message in sample["messages"]:
        turns += message["role"] == "assistant"
        last = message["role"] == "assistant" and turns == row.turn
        messages.append(
            {
                "role": message["role"],
                "content": message["content"],
                "reasoning_content": message["reasoning_content"] if last else "",
                "tool_calls": message["tool_calls"] or "[]",
            }
        )
        if last:
            break
    several = len(sample["generations"]) > 1
    return {
        "id": f"{row.id}.{row.turn}" if several else row.id,
        "conversations": messages,
        "tools": json.dumps(json.loads(sample["tools"] or "[]"), ensure_ascii=False),
    }


FORMATS = {
    "specforge": Format("jsonl", JsonLines, _ids_and_mask),
    "speculators": Format("jsonl", JsonLines, _ids_and_mask),
    "conversations": Format("jsonl", JsonLines, _conversation, tokens=False),
    "parquet": Format("parquet", lambda: parquet.ParquetFile(parquet.ROW_COLUMNS), _all_columns),
}


def packed_shard() -> Shard:
    """A shard of packed rows."""
    return parquet.ParquetFile(parquet.PACK_COLUMNS)
