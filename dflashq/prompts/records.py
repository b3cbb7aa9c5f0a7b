"""Records of JSON lines, a JSON array or pretty-printed objects, recognised by their first MiB."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dflashq.prompts.json_stream import (
    LOOKAHEAD,
    StreamText,
    array_records,
    ran_out,
    skip_space,
    value_records,
)
from dflashq.prompts.jsonl import (
    DECODER,
    MalformedRecord,
    Record,
    decoded,
    ignore_blank_line,
    line_records,
)


def records(
    name: str, chunks: Iterator[bytes], blank: Callable[[int], None] = ignore_blank_line
) -> Iterator[Record]:
    """All records of a text, without blank lines; a bad record has a MalformedRecord as value.

    `blank(line)` is called for each blank line among JSON lines, before the record behind it.
    InputError, naming `name`, when an array is malformed and its next element cannot be found.
    Memory: one record and a few MiB. Blocks on `chunks`.
    """
    head = b""
    for chunk in chunks:
        head += chunk
        if len(head) >= LOOKAHEAD:
            break
    else:
        chunks = iter(())
    whole = len(head) < LOOKAHEAD
    kind = _kind(head, whole)
    if kind == "lines":
        return line_records(head, chunks, blank)
    text = StreamText(name, head, chunks)
    return array_records(text) if kind == "array" else value_records(text)


def _kind(head: bytes, whole: bool) -> str:
    """`lines`, `array` or `values`, from the first MiB (`whole`: that is all there is)."""
    text = head.decode("utf-8", "replace").lstrip(" \t\r\n\ufeff")
    first, _, rest = text.partition("\n")
    if not text.startswith(("[", "{")):
        return "lines"
    value = decoded(first)
    if isinstance(value, list):
        return "lines" if rest.strip() else "array"
    if not isinstance(value, MalformedRecord):
        return "lines"
    if text[0] == "[":
        return "array" if _opens_array(text, whole) else "lines"
    return "values" if rest and _opens_value(text, len(first), whole) else "lines"


def _opens_array(text: str, whole: bool) -> bool:
    """True when the text begins with `[`, a value, and `,` (or `]` and nothing more)."""
    start = skip_space(text, 1)
    if text[start : start + 1] == "]":
        return not text[start + 1 :].strip()
    try:
        _, end = DECODER.raw_decode(text, start)
    except (ValueError, RecursionError) as exc:
        return not whole and ran_out(exc, len(text))
    end = skip_space(text, end)
    after = text[end : end + 1]
    return after == "," or (after == "]" and not text[end + 1 :].strip())


def _opens_value(text: str, first_line: int, whole: bool) -> bool:
    """True when the text begins with an object that goes over several lines."""
    try:
        _, end = DECODER.raw_decode(text)
    except (ValueError, RecursionError) as exc:
        return not whole and ran_out(exc, len(text))
    return end > first_line
