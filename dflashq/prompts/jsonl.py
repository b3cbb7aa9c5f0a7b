"""JSON lines: one record a line, split on LF alone; a bad line is told and the rest is read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import NamedTuple, NoReturn

MAX_RECORD = 64 << 20


class MalformedRecord(NamedTuple):
    """A record that is no JSON value: its reason word, and what was found."""

    why: str
    detail: str


class Record(NamedTuple):
    """One record: its physical line (its element number in an array), its bytes, its value."""

    line: int
    raw: bytes
    value: object


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


DECODER = json.JSONDecoder(parse_constant=_no_constant)
_decode = DECODER.decode


def nothing_to_tell(_line: int) -> None:
    """Who does not care for blank lines."""


def line_records(
    head: bytes, chunks: Iterator[bytes], blank: Callable[[int], None] = nothing_to_tell
) -> Iterator[Record]:
    """The lines of `head` and `chunks` that are not blank, by physical number; never raises.

    `blank(line)` is told of the others.
    """
    for number, (line, ended) in enumerate(_lines(head, chunks), 1):
        if line is None:
            yield Record(number, b"", MalformedRecord("line_too_long", f"over {MAX_RECORD} bytes"))
        elif line and not line.isspace():
            yield Record(number, line, _line_value(line, ended))
        else:
            blank(number)


def _lines(head: bytes, chunks: Iterator[bytes]) -> Iterator[tuple[bytes | None, bool]]:
    """Lines split on LF alone, with whether a newline ended them; None for one over the limit."""
    pending: list[bytes] = []
    size = 0
    piece: bytes | None = head
    while piece is not None:
        first, *others = piece.split(b"\n")
        pending.append(first)
        size += len(first)
        if size > MAX_RECORD:
            pending.clear()
        if others:
            yield (b"".join(pending) if size <= MAX_RECORD else None), True
            last = others.pop()
            for line in others:
                yield line, True
            pending, size = [last], len(last)
        piece = next(chunks, None)
    if size:
        yield (b"".join(pending) if size <= MAX_RECORD else None), False


def _line_value(line: bytes, ended: bool) -> object:
    try:
        return _decode(line.decode())
    except (ValueError, RecursionError) as exc:
        failure = exc
    value = _second_look(line, failure)
    if isinstance(value, MalformedRecord) and not ended:
        return MalformedRecord("truncated_line", f"the last line is cut off: {value.detail}")
    return value


def _second_look(line: bytes, failure: Exception) -> object:
    """A second look at a line that failed: a byte order mark before it, or what is wrong."""
    if isinstance(failure, UnicodeDecodeError):
        return MalformedRecord("invalid_utf8", f"byte {failure.start + 1} of the line is no UTF-8")
    text = line.decode("utf-8", "replace")
    return decoded(text[1:]) if text.startswith("\ufeff") else defect(failure)


def decoded(text: str) -> object:
    """The value of a whole JSON text, or a Defect; NaN and Infinity are no JSON."""
    try:
        return _decode(text)
    except (ValueError, RecursionError) as exc:
        return defect(exc)


def defect(exc: Exception) -> MalformedRecord:
    """What the decoder raised, as a Defect."""
    if isinstance(exc, RecursionError):
        return MalformedRecord("invalid_json", "nested too deep")
    return MalformedRecord("invalid_json", str(exc))
