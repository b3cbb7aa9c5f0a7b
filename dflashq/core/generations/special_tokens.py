"""The special token ids of a model that the checks and the splitting of answers need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

# Kinds of ids, as bits: one id may be of several kinds.
END, OPEN, CLOSE, TEMPLATE, BLANK = 1, 2, 4, 8, 16
MARKED = END | OPEN | CLOSE | TEMPLATE


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Special ids of one tokenizer, whose ids are `range(vocab_size)`.

    `end_ids` end an assistant turn. `think_open` and `think_close` are None for a model without
    thinking. `template_ids` never belong inside an answer. `blank_ids` are nothing but whitespace;
    an answer of those alone counts as none.
    """

    end_ids: frozenset[int]
    think_open: int | None
    think_close: int | None
    template_ids: frozenset[int]
    vocab_size: int
    blank_ids: frozenset[int] = frozenset()


# Space, newline, tab and carriage return in the spelling of byte-level vocabularies, the space of
# SentencePiece, and the characters themselves for vocabularies of neither kind.
_BLANK = frozenset("ĠĊĉč▁ \n\t\r")


def blank_ids(vocabulary: Mapping[str, int]) -> frozenset[int]:
    """The ids of `vocabulary` (token spelling to id) that are nothing but whitespace."""
    return frozenset(i for token, i in vocabulary.items() if token and _BLANK.issuperset(token))


@lru_cache(maxsize=8)
def kinds_of(markers: SpecialTokens) -> npt.NDArray[np.uint8]:
    """The kinds of every id: a read-only uint8 array of shape (at least vocab_size + 1,).

    Its last element is 0, for unknown ids.
    """
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
