"""JSON lines: one record a line, split on LF alone. A malformed line does not end the reading."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, NoReturn

MAX_RECORD = 64 << 20
MAX_DEPTH = 500


class MalformedRecord(NamedTuple):
    """A record that is no JSON value: its reason word, and what is wrong with it."""

    why: str
    detail: str


class Record(NamedTuple):
    """One record: its line (in an array: the number of the element), its bytes, its value."""

    line: int
    raw: bytes
    value: object


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


class _BoundedDecoder(json.JSONDecoder):
    """A decoder that raises RecursionError for values nested deeper than `MAX_DEPTH` levels.

    Python's own bound differs between its versions: the same file would make another run.
    """

    def raw_decode(self, s: str, idx: int = 0) -> tuple[Any, int]:
        value, end = super().raw_decode(s, idx)
        brackets = s.count("[", idx, end) + s.count("{", idx, end)
        if brackets > MAX_DEPTH and _deeper_than(value, MAX_DEPTH):
            raise RecursionError(f"nested deeper than {MAX_DEPTH} levels")
        return value, end


def _deeper_than(value: object, levels: int) -> bool:
    """Whether arrays and objects are nested deeper than that. Does not recurse."""
    level: list[object] = [value]
    for _ in range(levels + 1):
        containers = [item for item in level if isinstance(item, list | dict)]
        if not containers:
            return False
        level = [
            inner
            for item in containers
            for inner in (item.values() if isinstance(item, dict) else item)
        ]
    return True


DECODER = _BoundedDecoder(parse_constant=_no_constant)
_decode = DECODER.decode


def ignore_blank_line(_line: int) -> None:
    """The callback of readers that do not count blank lines."""


def line_records(
    head: bytes, chunks: Iterator[bytes], blank: Callable[[int], None] = ignore_blank_line
) -> Iterator[Record]:
    """The records of the lines of `head` and `chunks`; never raises.

    `blank(line)` is called for each blank line, which has no record.
    """
    for number, (line, ended) in enumerate(_lines(head, chunks), 1):
        if line is None:
            yield Record(number, b"", MalformedRecord("line_too_long", f"over {MAX_RECORD} bytes"))
        elif line and not line.isspace():
            yield Record(number, line, _line_value(line, ended))
        else:
            blank(number)


def _lines(head: bytes, chunks: Iterator[bytes]) -> Iterator[tuple[bytes | None, bool]]:
    """(line, whether a newline ended it) for each line; None for a line over MAX_RECORD bytes."""
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
    value = _value_or_defect(line, failure)
    if isinstance(value, MalformedRecord) and not ended:
        return MalformedRecord("truncated_line", f"the last line is cut off: {value.detail}")
    return value


def _value_or_defect(line: bytes, failure: Exception) -> object:
    """The value of a line that failed because of a byte order mark, or what is wrong with it."""
    if isinstance(failure, UnicodeDecodeError):
        return MalformedRecord("invalid_utf8", f"byte {failure.start + 1} of the line is no UTF-8")
    text = line.decode("utf-8", "replace")
    return decoded(text[1:]) if text.startswith("\ufeff") else malformed(failure)


def decoded(text: str) -> object:
    """The value of a whole JSON text, or a MalformedRecord; NaN and Infinity are no JSON."""
    try:
        return _decode(text)
    except (ValueError, RecursionError) as exc:
        return malformed(exc)


def malformed(exc: Exception) -> MalformedRecord:
    """The error of the decoder as a MalformedRecord."""
    if isinstance(exc, RecursionError):
        return MalformedRecord("invalid_json", "nested too deep")
    return MalformedRecord("invalid_json", str(exc))
