"""The special token ids of a model that the checks and the splitting of answers need."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Markers:
    """Special ids of one tokenizer.

    `end_ids` end an assistant turn; `think_open` and `think_close` are None for a model without
    thinking; `template_ids` may never stand inside an answer; ids are in `range(vocab_size)`.
    """

    end_ids: frozenset[int]
    think_open: int | None
    think_close: int | None
    template_ids: frozenset[int]
    vocab_size: int
