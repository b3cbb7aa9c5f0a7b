"""The special token ids of a model that the checks and the splitting of answers need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Markers:
    """Special ids of one tokenizer.

    `end_ids` end an assistant turn; `think_open` and `think_close` are None for a model without
    thinking; `template_ids` may never stand inside an answer; ids are in `range(vocab_size)`.
    `blank_ids` are whitespace only: an answer of nothing else is none.
    """

    end_ids: frozenset[int]
    think_open: int | None
    think_close: int | None
    template_ids: frozenset[int]
    vocab_size: int
    blank_ids: frozenset[int] = frozenset()


# Space, newline, tab and carriage return as byte-level vocabularies spell them, and the space of
# SentencePiece; as themselves in vocabularies that do neither.
_BLANK = frozenset("ĠĊĉč▁ \n\t\r")


def blank_ids(vocabulary: Mapping[str, int]) -> frozenset[int]:
    """The ids of `vocabulary` (token spelling to id) that are nothing but whitespace."""
    return frozenset(i for token, i in vocabulary.items() if token and _BLANK.issuperset(token))
