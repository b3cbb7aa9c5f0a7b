"""Checks of training data from other tools: token rows with a mask, or conversations as text."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dflashq.core.generations.checks import OPENING
from dflashq.core.generations.special_tokens import SpecialTokens

KINDS = {
    "bad_json": "a line that is no JSON",
    "no_row": "an object that is neither a token row nor a conversation",
    "bad_ids": "ids and mask differ in length, or are not whole numbers and 0 or 1",
    "all_zero_mask": "nothing is supervised",
    "isolated_mask": "no two supervised ids stand side by side, which block drafting needs",
    "stub": "fewer supervised ids than --min-supervised",
    "truncated": "cut off at a limit: finish_reason length, or no end token at the end",
    "failed": "the row says itself that its generation failed",
    "no_assistant": "a conversation without an answer",
    "empty_answer": "an answer of nothing but whitespace, without a tool call",
    "empty_think": "an empty think block in front of an empty answer",
    "orphan_think": "a think tag without its partner, or a second pair",
    "misread_key": "a key that SpecForge hands to the chat template as an option",
    "repeated": "the same answer as an earlier row",
    "same_length": "rows that share the commonest length",
}
# Beside `conversations` each of these reaches the template: it raises, or changes the masks.
MISREAD = frozenset(
    [
        "messages",
        "text",
        "tokenize",
        "max_length",
        "preserve_thinking",
        "enable_thinking",
        "add_generation_prompt",
        "continue_final_message",
        "chat_template",
        "return_dict",
    ]
)
_EMPTY_THINK = re.compile(r"<think>\s*</think>\s*")
_THOUGHT = re.compile(r"\A.*</think>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class RowDefects:
    """The defects of one row (keys of KINDS), its shape, its length and the hash of its answer.

    `length` is in supervised ids for token rows, else in characters; None when it has none.
    """

    kinds: frozenset[str]
    shape: str
    length: int | None = None
    answer: bytes | None = None


def examine(row: object, markers: SpecialTokens | None, min_supervised: int) -> RowDefects:
    """The defects of one row. With `markers`, the ends and think tags of token rows count too."""
    if isinstance(row, dict) and isinstance(row.get("input_ids"), list):
        return _tokens(row, markers, min_supervised)
    if isinstance(row, dict):
        for name in ("conversations", "messages"):
            if isinstance(row.get(name), list):
                return _conversation(row, name)
    return RowDefects(frozenset(["no_row"]), "unknown")


def _tokens(row: dict[str, Any], markers: SpecialTokens | None, min_supervised: int) -> RowDefects:
    ids, mask = _flat(row["input_ids"]), _flat(row.get("loss_mask"))
    if not _are_ids(ids) or not _is_mask(mask) or len(ids) != len(mask):
        return RowDefects(frozenset(["bad_ids"]), "tokens")
    bits = bytes(mask)
    length = bits.count(1)
    kinds = set(_stated(row))
    if not length:
        kinds.add("all_zero_mask")
    elif b"\1\1" not in bits:
        kinds.add("isolated_mask")
    if 0 < length < min_supervised:
        kinds.add("stub")
    if markers is not None:
        for start, end in _spans(bits):
            kinds |= _span_kinds(ids[max(0, start - OPENING) : start], ids[start:end], markers)
    spoken = [token for token, bit in zip(ids, bits, strict=True) if bit]
    return RowDefects(frozenset(kinds), "tokens", length, _digest(spoken) if spoken else None)


def _flat(value: Any) -> Any:
    """A list, or the list inside a list of one."""
    inner = isinstance(value, list) and len(value) == 1 and isinstance(value[0], list)
    return value[0] if inner else value


def _are_ids(ids: Any) -> bool:
    return isinstance(ids, list) and all(type(token) is int and token >= 0 for token in ids)


def _is_mask(mask: Any) -> bool:
    return isinstance(mask, list) and all(type(bit) is int and bit in (0, 1) for bit in mask)


def _spans(bits: bytes) -> Iterator[tuple[int, int]]:
    """(start, end) of each run of supervised ids."""
    start = bits.find(1)
    while start >= 0:
        end = bits.find(0, start)
        end = len(bits) if end < 0 else end
        yield start, end
        start = bits.find(1, end)


def _span_kinds(before: list[int], ids: list[int], markers: SpecialTokens) -> set[str]:
    """The defects of one supervised span: of its end, and of its think tags."""
    kinds = set()
    # Templates write a newline behind the end token, and some trainers put loss on it.
    ends = [n for n, token in enumerate(ids) if token in markers.end_ids]
    if not ends or len(ids) - ends[-1] > 2:
        kinds.add("truncated")
    body = ids[: ends[0]] if ends else ids
    opens = body.count(_id(markers.think_open))
    closes = body.count(_id(markers.think_close))
    if closes > 1 or opens > 1 or closes != opens + _open_before(before, markers):
        kinds.add("orphan_think")
    boundary = body.index(_id(markers.think_close)) if closes else -1
    answer, thought = body[boundary + 1 :], body[: max(boundary, 0)]
    if all(token in markers.blank_ids for token in answer):
        kinds.add("empty_answer")
        blank = markers.blank_ids | {markers.think_open}
        if closes and all(token in blank for token in thought):
            kinds.add("empty_think")
    return kinds


def _id(marker: int | None) -> int:
    """The id of a marker; -1, which no row has, for one that the model lacks."""
    return -1 if marker is None else marker


def _open_before(before: list[int], markers: SpecialTokens) -> int:
    """1 when the prompt ends inside an open think block, else 0."""
    for token in reversed(before):
        if token in (markers.think_open, markers.think_close):
            return int(token == markers.think_open)
    return 0


def _conversation(row: dict[str, Any], name: str) -> RowDefects:
    turns = [_turn(message) for message in row[name] if isinstance(message, dict)]
    answers = [turn for turn in turns if turn["role"] in ("assistant", "gpt")]
    kinds = set(_stated(row))
    if name == "conversations" and not MISREAD.isdisjoint(row):
        kinds.add("misread_key")
    if not answers:
        return RowDefects(frozenset(kinds | {"no_assistant"}), name)
    for turn in answers:
        kinds |= _turn_kinds(turn)
    last = answers[-1]
    text = last["reasoning"] + last["content"]
    spoken = _THOUGHT.sub("", last["content"]).strip() + str(last["calls"] or "")
    return RowDefects(frozenset(kinds), name, len(text), _digest(spoken) if spoken else None)


def _turn(message: Mapping[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    content = message.get("value") if content is None else content
    calls = message.get("tool_calls")
    return {
        "role": message.get("role") or message.get("from"),
        "content": content if isinstance(content, str) else _text(content),
        "reasoning": _text(message.get("reasoning_content") or message.get("reasoning")),
        "calls": None if calls in ("", "[]", []) else calls,
    }


def _text(value: object) -> str:
    """The text of a content that may be a list of parts."""
    if isinstance(value, list):
        return "".join(_text(part.get("text")) for part in value if isinstance(part, dict))
    return value if isinstance(value, str) else ""


def _turn_kinds(turn: dict[str, Any]) -> set[str]:
    kinds = set()
    content = turn["content"]
    opens, closes = content.count("<think>"), content.count("</think>")
    swapped = opens and closes and content.index("</think>") < content.index("<think>")
    if opens != closes or closes > 1 or swapped or (closes and turn["reasoning"]):
        kinds.add("orphan_think")
    if not _THOUGHT.sub("", content).strip() and not turn["calls"]:
        kinds.add("empty_answer")
        if _EMPTY_THINK.fullmatch(content.strip()):
            kinds.add("empty_think")
    return kinds


def _stated(row: Mapping[str, Any]) -> Iterator[str]:
    """The defects that the row itself states: in a finish reason, a status or an error."""
    inner = row.get("metadata")
    for fields in (row, inner if isinstance(inner, dict) else {}):
        if fields.get("finish_reason") == "length":
            yield "truncated"
        if fields.get("error") or fields.get("status") not in (None, "", "success", "ok"):
            yield "failed"


def _digest(value: object) -> bytes:
    return hashlib.blake2b(json.dumps(value).encode(), digest_size=8).digest()
