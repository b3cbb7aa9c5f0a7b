"""The special token ids of a model that the checks and the splitting of answers need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

# Kinds of ids, as bits; an id may be of several.
END, OPEN, CLOSE, TEMPLATE, BLANK = 1, 2, 4, 8, 16
MARKED = END | OPEN | CLOSE | TEMPLATE


@dataclass(frozen=True, slots=True)
class SpecialTokens:
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


@lru_cache(maxsize=8)
def kinds_of(markers: SpecialTokens) -> npt.NDArray[np.uint8]:
    """The kinds of every id of the vocabulary, and a 0 behind the last one. Read only."""
    thinks = {OPEN: markers.think_open, CLOSE: markers.think_close}
    named: dict[int, frozenset[int]] = {
        END: markers.end_ids,
        TEMPLATE: markers.template_ids,
        BLANK: markers.blank_ids,
        **{kind: frozenset({token}) for kind, token in thinks.items() if token is not None},
    }
    size = max(markers.vocab_size, *(max(ids, default=0) + 1 for ids in named.values()))
    kinds = np.zeros(size + 1, np.uint8)
    for kind, ids in named.items():
        kinds[list(ids)] |= kind
    kinds.setflags(write=False)
    return kinds
