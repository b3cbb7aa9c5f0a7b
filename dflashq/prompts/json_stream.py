"""The elements of a JSON array, and pretty-printed objects, read from a stream."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator

from dflashq.core.errors import InputError
from dflashq.prompts.jsonl import DECODER, MAX_RECORD, MalformedRecord, Record, malformed

LOOKAHEAD = 1 << 20
_LENIENT = json.JSONDecoder(parse_int=str)
_SPACE = re.compile(r"[ \t\n\r\ufeff]*")
_NOT_UTF8 = re.compile(r"[\udc80-\udcff]")


def ran_out(exc: Exception, length: int) -> bool:
    """Whether the error lies so near the end of the text that more text might mend it."""
    if not isinstance(exc, json.JSONDecodeError):
        return False
    return exc.msg.startswith("Unterminated string") or exc.pos >= length - 12


def skip_space(text: str, start: int) -> int:
    """The position of the first character from `start` on that is not JSON whitespace."""
    match = _SPACE.match(text, start)
    return match.end() if match else start


class StreamText:
    """A text that is read as needed; `buffer[pos:]` is read but not consumed yet."""

    def __init__(self, name: str, head: bytes, chunks: Iterator[bytes]) -> None:
        self.name, self._chunks = name, chunks
        # Bytes that are no UTF-8 become lone surrogates, which valid UTF-8 cannot contain.
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self.buffer, self.pos, self.line, self.ended = self._decoder.decode(head), 0, 1, False

    def read_on(self) -> bool:
        """Double the unconsumed text; False at the end. So a long value is parsed few times."""
        wanted = max(LOOKAHEAD, len(self.buffer) - self.pos)
        pieces = [self.buffer[self.pos :]]
        while wanted > 0 and not self.ended:
            chunk = next(self._chunks, None)
            self.ended = chunk is None
            piece = self._decoder.decode(chunk or b"", self.ended)
            pieces.append(piece)
            wanted -= len(piece)
        self.buffer, self.pos = "".join(pieces), 0
        return len(pieces) > 1 and any(pieces[1:])

    def consume(self, end: int) -> str:
        """Move to the position `end`; the text before it."""
        consumed = self.buffer[self.pos : end]
        self.line += consumed.count("\n")
        self.pos = end
        return consumed

    def peek(self) -> str:
        """The next character that is no whitespace, without consuming it; empty at the end."""
        while True:
            self.consume(skip_space(self.buffer, self.pos))
            if self.pos < len(self.buffer) or not self.read_on():
                return self.buffer[self.pos : self.pos + 1]

    def value(self) -> tuple[str, object]:
        """The text and the value that come next; a MalformedRecord instead of a bad value.

        When the end of a bad value is not known, its text is empty and nothing is consumed.
        """
        while True:
            try:
                value, end = DECODER.raw_decode(self.buffer, self.pos)
            except (ValueError, RecursionError) as exc:
                too_long = len(self.buffer) - self.pos > MAX_RECORD
                if too_long or not ran_out(exc, len(self.buffer)) or not self.read_on():
                    return self._consume_lenient(exc), malformed(exc)
                continue
            # A number at the end of the buffer may continue: 12 may be the beginning of 123.
            if end < len(self.buffer) or self.ended:
                raw = self.consume(end)
                return raw, _checked(raw, value)
            self.read_on()

    def _consume_lenient(self, failure: Exception) -> str:
        """Consume a bad value whose end is known: one with NaN or a number that is too long."""
        if isinstance(failure, json.JSONDecodeError | RecursionError):
            return ""
        try:
            return self.consume(_LENIENT.raw_decode(self.buffer, self.pos)[1])
        except (ValueError, RecursionError):
            return ""


def _checked(raw: str, value: object) -> object:
    if not raw.isascii() and _NOT_UTF8.search(raw):
        return MalformedRecord("invalid_utf8", "the element contains bytes that are no UTF-8")
    return value


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def array_records(text: StreamText) -> Iterator[Record]:
    """The elements of the array that `text` begins with, numbered from 1.

    An element in which the file ends is a MalformedRecord. InputError when the array is malformed
    before that.
    """
    number, mark = 0, "["
    text.peek()
    text.consume(text.pos + 1)
    if text.peek() == "]":
        mark = "]"
        text.consume(text.pos + 1)
    while mark != "]":
        number += 1
        text.peek()
        raw, value = text.value()
        if isinstance(value, MalformedRecord) and not raw:
            yield _broken_element(text, number, value)
            return
        yield Record(number, _raw(raw), value)
        mark = text.peek()
        if not mark:
            yield Record(
                number + 1, b"", MalformedRecord("truncated_line", "the array is not closed")
            )
            return
        if mark not in ",]":
            raise _broken_array(text, number, f"{mark!r} in place of , or ]")
        text.consume(text.pos + 1)
    if text.peek():
        raise _broken_array(text, number, "more text follows its closing bracket")


def _broken_element(text: StreamText, number: int, failed: MalformedRecord) -> Record:
    """The last element, when the file ends inside it; InputError when more text follows."""
    rest = text.buffer[text.pos :]
    if not text.ended or not _ends_inside(rest):
        raise _broken_array(text, number - 1, failed.detail)
    text.consume(len(text.buffer))
    detail = f"the file ends inside the element: {failed.detail}"
    return Record(number, _raw(rest), MalformedRecord("truncated_line", detail))


def _ends_inside(rest: str) -> bool:
    try:
        DECODER.raw_decode(rest)
    except (ValueError, RecursionError) as exc:
        return ran_out(exc, len(rest))
    return False


def _broken_array(text: StreamText, good: int, detail: str) -> InputError:
    return InputError(
        f"{text.name} is a JSON array that is malformed behind element {good} (line {text.line}): "
        f"{detail}. Mend it or write one object a line; nothing was enqueued."
    )


def value_records(text: StreamText) -> Iterator[Record]:
    """Consecutive values, each with the line it begins on; never raises.

    A line that begins no value is a MalformedRecord, and reading goes on with the next line.
    """
    while text.peek():
        line = text.line
        raw, value = text.value()
        if isinstance(value, MalformedRecord) and not raw:
            yield _skipped_line(text, line, value)
        else:
            yield Record(line, _raw(raw), value)


def _skipped_line(text: StreamText, line: int, failed: MalformedRecord) -> Record:
    """Consume the rest of the line as malformed: the next line may begin a value again."""
    end = text.buffer.find("\n", text.pos)
    while end < 0 and text.read_on():
        end = text.buffer.find("\n", text.pos)
    if end < 0:
        raw = text.consume(len(text.buffer))
        return Record(line, _raw(raw), MalformedRecord("truncated_line", failed.detail))
    return Record(line, _raw(text.consume(end)), failed)
