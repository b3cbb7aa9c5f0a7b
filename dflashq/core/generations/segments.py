"""The output ids of one generation, cut into thinking, answer and end."""

from __future__ import annotations

import numpy as np

from dflashq.core.generations.special_tokens import BLANK, MARKED, SpecialTokens, kinds_of
from dflashq.core.token_ids import IdArray


class OutputSegments:
    """The ids of one generation as the rules and the text need them.

    `thinking` is what its prompt was rendered with; `thinks`: it was asked for, and the model
    knows how. `end` is where the closing end token stands, or would stand; `boundary` where the
    first `</think>` does, None when none does or no thinking was asked for.
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
        """The thinking: all of it when it never closed."""
        if not self.thinks:
            return slice(0, 0)
        return slice(0, self.end if self.boundary is None else self.boundary)

    @property
    def answer(self) -> slice:
        """What follows the thinking; nothing when it never closed."""
        if not self.thinks:
            return slice(0, self.end)
        return slice(self.end if self.boundary is None else self.boundary + 1, self.end)

    @property
    def reasoning_tokens(self) -> int:
        """How many ids count as reasoning: up to and with `</think>`."""
        return int(self.thought.stop) + (self.boundary is not None)


class TokenKinds:
    """What the ids of an output are, looked up once for all rules.

    `known`: all are in the vocabulary; `kinds`: the bits of `core.markers`, 0 for plain text and
    for unknown ids; `spoken`: how many ids of the answer are more than whitespace.
    """

    __slots__ = ("_places", "kinds", "known", "spoken")

    def __init__(self, output: OutputSegments) -> None:
        ids, table = output.ids, kinds_of(output.markers)
        self.known = not len(ids) or bool(ids.max() < output.markers.vocab_size)
        self.kinds = table.take(ids if self.known else np.minimum(ids, len(table) - 1))
        marked = self.kinds[: output.end] & MARKED
        # Hardly any id is an end, think or template token.
        self._places = [(place, marked[place]) for place in marked.nonzero()[0].tolist()]
        said = self.kinds[output.answer]
        self.spoken = len(said) - int(np.count_nonzero(said & BLANK))

    def places(self, kind: int) -> list[int]:
        """Where ids of this kind (END, OPEN, CLOSE, TEMPLATE) stand before the end."""
        return [place for place, bits in self._places if bits & kind]
