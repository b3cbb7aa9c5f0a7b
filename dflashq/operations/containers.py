"""JSON lines, a JSON array, or pretty-printed objects: told apart by looking, streamed."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import NamedTuple, NoReturn

from dflashq.core.errors import InputError

LOOK = 1 << 20
MAX_RECORD = 64 << 20
_SPACE = re.compile(r"[ \t\n\r\ufeff]*")
_LEFT = re.compile(r"[\udc80-\udcff]")


class Defect(NamedTuple):
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


_DECODER = json.JSONDecoder(parse_constant=_no_constant)
_decode = _DECODER.decode


def records(name: str, chunks: Iterator[bytes]) -> Iterator[Record]:
    """All records of a text, blank lines left out; `value` is a Defect where there is none.

    Holds one record and a few MiB. Raises InputError naming `name` when an array breaks off in
    its middle, where what follows cannot be told.
    """
    head = b""
    for chunk in chunks:
        head += chunk
        if len(head) >= LOOK:
            break
    else:
        chunks = iter(())
    whole = len(head) < LOOK
    kind = _kind(head, whole)
    if kind == "lines":
        return _from_lines(head, chunks)
    text = _Text(name, head, chunks)
    return _from_array(text) if kind == "array" else _from_values(text)


def _kind(head: bytes, whole: bool) -> str:
    """`lines`, `array` or `values`, from the first MiB (`whole`: that is all there is)."""
    text = head.decode("utf-8", "replace").lstrip(" \t\r\n\ufeff")
    first, _, rest = text.partition("\n")
    if not text.startswith(("[", "{")):
        return "lines"
    value = _value(first)
    if isinstance(value, list):
        return "lines" if rest.strip() else "array"
    if not isinstance(value, Defect):
        return "lines"
    if text[0] == "[":
        return "array" if _opens_array(text, whole) else "lines"
    return "values" if rest and _opens_value(text, len(first), whole) else "lines"


def _opens_array(text: str, whole: bool) -> bool:
    """True when the text begins with `[`, a value, and `,` (or `]` and nothing more)."""
    start = _skip(text, 1)
    if text[start : start + 1] == "]":
        return not text[start + 1 :].strip()
    try:
        _, end = _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError) as exc:
        return not whole and _ran_out(exc, len(text))
    end = _skip(text, end)
    after = text[end : end + 1]
    return after == "," or (after == "]" and not text[end + 1 :].strip())


def _opens_value(text: str, first_line: int, whole: bool) -> bool:
    """True when the text begins with an object that goes over several lines."""
    try:
        _, end = _DECODER.raw_decode(text)
    except (ValueError, RecursionError) as exc:
        return not whole and _ran_out(exc, len(text))
    return end > first_line


def _ran_out(exc: Exception, length: int) -> bool:
    """True when more text might have made this a value."""
    if not isinstance(exc, json.JSONDecodeError):
        return False
    return exc.msg.startswith("Unterminated string") or exc.pos >= length - 12


def _skip(text: str, start: int) -> int:
    match = _SPACE.match(text, start)
    return match.end() if match else start


def _from_lines(head: bytes, chunks: Iterator[bytes]) -> Iterator[Record]:
    for number, (line, ended) in enumerate(_lines(head, chunks), 1):
        if line is None:
            yield Record(number, b"", Defect("line_too_long", f"over {MAX_RECORD} bytes"))
        elif line and not line.isspace():
            yield Record(number, line, _line_value(line, ended))


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
    value: object = _value_or_defect(line, failure)
    if isinstance(value, Defect) and not ended:
        return Defect("truncated_line", f"the last line is cut off: {value.detail}")
    return value


def _value_or_defect(line: bytes, failure: Exception) -> object:
    """A second look at a line that failed: a byte order mark before it, or what is wrong."""
    if isinstance(failure, UnicodeDecodeError):
        return Defect("invalid_utf8", f"byte {failure.start + 1} of the line is no UTF-8")
    text = line.decode("utf-8", "replace")
    return _value(text[1:]) if text.startswith("\ufeff") else _defect(failure)


def _value(text: str) -> object:
    try:
        return _decode(text)
    except (ValueError, RecursionError) as exc:
        return _defect(exc)


def _defect(exc: Exception) -> Defect:
    if isinstance(exc, RecursionError):
        return Defect("invalid_json", "nested too deep")
    return Defect("invalid_json", str(exc))


class _Text:
    """A text that is read on as needed: `buffer` from `pos` on is what is not used up."""

    def __init__(self, name: str, head: bytes, chunks: Iterator[bytes]) -> None:
        self.name, self._chunks = name, chunks
        # Bytes that are no UTF-8 come as lone surrogates; a JSON escape never shows as one here.
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self.buffer, self.pos, self.line, self.ended = self._decoder.decode(head), 0, 1, False

    def read_on(self) -> bool:
        """Doubles what is left to use, so that a long value is not tried again and again."""
        wanted = max(LOOK, len(self.buffer) - self.pos)
        pieces = [self.buffer[self.pos :]]
        while wanted > 0 and not self.ended:
            chunk = next(self._chunks, None)
            self.ended = chunk is None
            piece = self._decoder.decode(chunk or b"", self.ended)
            pieces.append(piece)
            wanted -= len(piece)
        self.buffer, self.pos = "".join(pieces), 0
        return len(pieces) > 1 and any(pieces[1:])

    def used(self, end: int) -> str:
        """Moves to `end` and gives what lies before it."""
        taken = self.buffer[self.pos : end]
        self.line += taken.count("\n")
        self.pos = end
        return taken

    def peek(self) -> str:
        """The next character that is no space, not used up; empty at the end."""
        while True:
            self.used(_skip(self.buffer, self.pos))
            if self.pos < len(self.buffer) or not self.read_on():
                return self.buffer[self.pos : self.pos + 1]

    def value(self) -> tuple[str, object]:
        """The next value with its text; a Defect, with nothing used up, when there is none."""
        while True:
            try:
                value, end = _DECODER.raw_decode(self.buffer, self.pos)
            except (ValueError, RecursionError) as exc:
                too_long = len(self.buffer) - self.pos > MAX_RECORD
                if too_long or not _ran_out(exc, len(self.buffer)) or not self.read_on():
                    return "", _defect(exc)
                continue
            if end < len(self.buffer) or not self.read_on():
                raw = self.used(end)
                return raw, _checked(raw, value)


def _checked(raw: str, value: object) -> object:
    if not raw.isascii() and _LEFT.search(raw):
        return Defect("invalid_utf8", "the element holds bytes that are no UTF-8")
    return value


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _from_array(text: _Text) -> Iterator[Record]:
    number, mark = 0, "["
    text.peek()
    text.used(text.pos + 1)
    if text.peek() == "]":
        mark = "]"
        text.used(text.pos + 1)
    while mark != "]":
        number += 1
        text.peek()
        raw, value = text.value()
        if isinstance(value, Defect) and not raw:
            yield _broken_element(text, number, value)
            return
        yield Record(number, _raw(raw), value)
        mark = text.peek()
        if not mark:
            yield Record(number + 1, b"", Defect("truncated_line", "the array is not closed"))
            return
        if mark not in ",]":
            raise _broken_array(text, number, f"{mark!r} where , or ] was due")
        text.used(text.pos + 1)
    if text.peek():
        raise _broken_array(text, number, "there is more text behind its closing bracket")


def _broken_element(text: _Text, number: int, defect: Defect) -> Record:
    """The last element when the file ends inside it; InputError when it goes on behind it."""
    rest = text.buffer[text.pos :]
    if not text.ended or not _ends_inside(rest):
        raise _broken_array(text, number - 1, defect.detail)
    text.used(len(text.buffer))
    detail = f"the file ends inside the element: {defect.detail}"
    return Record(number, _raw(rest), Defect("truncated_line", detail))


def _ends_inside(rest: str) -> bool:
    try:
        _DECODER.raw_decode(rest)
    except (ValueError, RecursionError) as exc:
        return _ran_out(exc, len(rest))
    return False


def _broken_array(text: _Text, good: int, detail: str) -> InputError:
    return InputError(
        f"{text.name} is a JSON array that breaks behind element {good} (line {text.line}): "
        f"{detail}. Mend it or write one object a line; nothing was enqueued."
    )


def _from_values(text: _Text) -> Iterator[Record]:
    while text.peek():
        line = text.line
        raw, value = text.value()
        if isinstance(value, Defect) and not raw:
            yield _skipped_line(text, line, value)
        else:
            yield Record(line, _raw(raw), value)


def _skipped_line(text: _Text, line: int, defect: Defect) -> Record:
    """Leaves the rest of the line out: the next line may begin a value again."""
    end = text.buffer.find("\n", text.pos)
    while end < 0 and text.read_on():
        end = text.buffer.find("\n", text.pos)
    if end < 0:
        raw = text.used(len(text.buffer))
        return Record(line, _raw(raw), Defect("truncated_line", defect.detail))
    return Record(line, _raw(text.used(end)), defect)
