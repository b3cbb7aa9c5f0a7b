"""The output ids of one generation, cut into thinking, answer and end."""

from __future__ import annotations

import numpy as np

from dflashq.core.generations.special_tokens import BLANK, MARKED, SpecialTokens, kinds_of
from dflashq.core.token_ids import IdArray


class OutputSegments:
    """The ids of one generation, cut into thinking, answer and end.

    `ids` is a uint32 array of shape (number of output ids,), `markers` the special ids of the
    model, `thinking` the option that the prompt was rendered with. `thinks`: that option was on and
    the model has think tokens. `end` is the position of the closing end token, or the number of ids
    without one. `boundary` is the position of the first `</think>`; None without one, or when the
    turn does not think.
    """

    __slots__ = ("boundary", "end", "ids", "markers", "thinks")

    def __init__(self, ids: IdArray, markers: SpecialTokens, *, thinking: bool) -> None:
        self.ids, self.markers = ids, markers
        self.thinks = thinking and markers.think_close is not None
        self.end = len(ids) - bool(len(ids) and int(ids[-1]) in markers.end_ids)
        self.boundary: int | None = None
        if self.thinks:
            closes = (ids[: self.end] == markers.think_close).nonzero()[0]
            self.boundary = int(closes[0]) if len(closes) else None

    @property
    def thought(self) -> slice:
        """The positions of the thinking: all up to the end when it was never closed."""
        if not self.thinks:
            return slice(0, 0)
        return slice(0, self.end if self.boundary is None else self.boundary)

    @property
    def answer(self) -> slice:
        """The positions of the answer: what follows the thinking, empty when it was not closed."""
        if not self.thinks:
            return slice(0, self.end)
        return slice(self.end if self.boundary is None else self.boundary + 1, self.end)

    @property
    def reasoning_tokens(self) -> int:
        """How many ids count as reasoning: all up to `</think>`, and that one too."""
        return int(self.thought.stop) + (self.boundary is not None)


class TokenKinds:
    """The kind of every id of an output, looked up once for all rules.

    `known`: all ids are in the vocabulary. `kinds` is a uint8 array of the shape of the ids with
    the bits of `special_tokens`, 0 for plain text and for unknown ids. `spoken` is how many ids of
    the answer are not only whitespace.
    """

    __slots__ = ("_places", "kinds", "known", "spoken")

    def __init__(self, output: OutputSegments) -> None:
        ids, table = output.ids, kinds_of(output.markers)
        self.known = not len(ids) or bool(ids.max() < output.markers.vocab_size)
        self.kinds = table.take(ids if self.known else np.minimum(ids, len(table) - 1))
        marked = self.kinds[: output.end] & MARKED
        # Few ids are end, think or template tokens, so a list of them is short.
        self._places = [(place, marked[place]) for place in marked.nonzero()[0].tolist()]
        answer = self.kinds[output.answer]
        self.spoken = len(answer) - int(np.count_nonzero(answer & BLANK))

    def places(self, kind: int) -> list[int]:
        """The positions before the end with an id of this kind: END, OPEN, CLOSE or TEMPLATE."""
        return [place for place, bits in self._places if bits & kind]
