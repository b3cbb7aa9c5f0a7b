"""Training rows: the exact ids of one generation, with the loss on its output alone.

Nothing is rendered or tokenized again: `input_ids` are the ids that the engine got, followed by the
ids that it generated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

DROP, CUT = "drop", "cut"
# DFlash drafts 16 tokens at a time; a row needs two such blocks to teach anything.
BLOCK_SIZE = 16
MIN_SUPERVISED = 2 * BLOCK_SIZE


@dataclass(frozen=True, slots=True)
class Row:
    """One generation as a training row; the loss is on all ids but the first `prompt_tokens`.

    `index` and `turn` identify the generation in its run; `id` is the user's and may repeat.
    """

    input_ids: list[int]
    prompt_tokens: int
    id: str
    index: int
    turn: int
    source: str
    domain: str

    @property
    def supervised(self) -> int:
        """The number of ids with loss."""
        return len(self.input_ids) - self.prompt_tokens

    @property
    def loss_mask(self) -> list[int]:
        """0 for every id of the prompt, 1 for every id of the output."""
        return [0] * self.prompt_tokens + [1] * self.supervised

    def to_json(self) -> dict[str, Any]:
        return {
            "input_ids": self.input_ids,
            "loss_mask": self.loss_mask,
            "id": self.id,
            "index": self.index,
            "turn": self.turn,
            "source": self.source,
            "domain": self.domain,
        }


def rows_of(sample: Mapping[str, Any]) -> list[Row]:
    """The rows of one accepted sample, one for each generation, in the order of the turns."""
    return [
        Row(
            input_ids=[*generation["prompt_ids"], *generation["output_ids"]],
            prompt_tokens=len(generation["prompt_ids"]),
            id=sample["id"],
            index=sample["index"],
            turn=turn,
            source=sample["source"],
            domain=sample["domain"],
        )
        for turn, generation in enumerate(sample["generations"])
    ]


def truncate_row(
    row: Row, max_length: int | None, overflow: str, min_supervised: int = MIN_SUPERVISED
) -> Row | None:
    """The row when it has at most `max_length` ids; else None, or its beginning for CUT.

    None also when a cut would leave fewer than `min_supervised` ids with loss.
    """
    if max_length is None or len(row.input_ids) <= max_length:
        return row
    if overflow != CUT or max_length - row.prompt_tokens < min_supervised:
        return None
    return replace(row, input_ids=row.input_ids[:max_length])


@dataclass(frozen=True, slots=True)
class Pack:
    """Concatenated rows; row n is `input_ids[boundaries[n]:boundaries[n + 1]]`."""

    rows: tuple[Row, ...]

    @property
    def boundaries(self) -> list[int]:
        positions = [0]
        for row in self.rows:
            positions.append(positions[-1] + len(row.input_ids))
        return positions

    def to_json(self) -> dict[str, Any]:
        return {
            "input_ids": [token for row in self.rows for token in row.input_ids],
            "loss_mask": [bit for row in self.rows for bit in row.loss_mask],
            "boundaries": self.boundaries,
            "ids": [row.id for row in self.rows],
            "indexes": [row.index for row in self.rows],
            "turns": [row.turn for row in self.rows],
            "sources": [row.source for row in self.rows],
            "domains": [row.domain for row in self.rows],
        }


class Packer:
    """Packs rows, first fit, into at most `open_packs` unfinished packs of `length` ids each.

    Memory is constant. Rows must not be longer than `length`. The same rows in the same order give
    the same packs.
    """

    def __init__(self, length: int, open_packs: int = 64) -> None:
        self._length, self._open_packs = length, open_packs
        self._open: list[tuple[int, list[Row]]] = []

    def add(self, row: Row) -> Iterator[Pack]:
        """Add a row; yields the packs that are full now. ValueError for a row over `length`."""
        size = len(row.input_ids)
        if size > self._length:
            raise ValueError(f"a row of {size} ids does not fit a pack of {self._length}")
        place = next(
            (n for n, (used, _) in enumerate(self._open) if used + size <= self._length), None
        )
        if place is None:
            if len(self._open) == self._open_packs:
                yield self._fullest()
            self._open.append((size, [row]))
            return
        used, rows = self._open[place]
        rows.append(row)
        self._open[place] = (used + size, rows)
        if used + size == self._length:
            yield Pack(tuple(self._open.pop(place)[1]))

    def _fullest(self) -> Pack:
        place = max(range(len(self._open)), key=lambda n: self._open[n][0])
        return Pack(tuple(self._open.pop(place)[1]))

    def rest(self) -> Iterator[Pack]:
        """Yields the unfinished packs, oldest first; the packer is empty afterwards."""
        left, self._open = self._open, []
        yield from (Pack(tuple(rows)) for _, rows in left)


def packed(rows: Iterable[Row], length: int) -> Iterator[Pack]:
    """All rows in packs of at most `length` ids; none is split, none is lost."""
    packer = Packer(length)
    for row in rows:
        yield from packer.add(row)
    yield from packer.rest()
