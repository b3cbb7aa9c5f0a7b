"""Ids that occur again with another prompt, found among millions: 16 bytes a table cell."""

from __future__ import annotations

from array import array
from typing import Any

_MASK = (1 << 64) - 1


class DuplicateIdIndex:
    """An open-addressing table from the hash of an id to the hash of its first prompt.

    With 64-bit hashes, a false hit among a million ids has a probability of 1 in 10^7, and a hit
    only adds a reason word to a row. A million ids take 32 MB.
    """

    def __init__(self) -> None:
        self._size = 1 << 12
        self._count = 0
        self._ids, self._prompts = self._empty(self._size)

    def repeated(self, key: object, prompt: object) -> bool:
        """Whether `key` occurred before with another prompt; its first prompt is stored."""
        id_hash = (hash(key) & _MASK) or 1
        prompt_hash = hash(prompt) & _MASK
        cell = self._cell(id_hash)
        if self._ids[cell]:
            return self._prompts[cell] != prompt_hash
        self._ids[cell], self._prompts[cell] = id_hash, prompt_hash
        self._count += 1
        if self._count * 3 > self._size * 2:
            self._grow()
        return False

    @staticmethod
    def _empty(size: int) -> tuple[array[int], array[int]]:
        return array("Q", bytes(8 * size)), array("Q", bytes(8 * size))

    def _cell(self, id_hash: int) -> int:
        """The cell that holds `id_hash`, or the free cell where it belongs."""
        ids, mask = self._ids, self._size - 1
        cell = (id_hash ^ id_hash >> 32) & mask
        while ids[cell] and ids[cell] != id_hash:
            cell = (cell + 1) & mask
        return cell

    def _grow(self) -> None:
        old_ids, old_prompts = self._ids, self._prompts
        self._size *= 2
        self._ids, self._prompts = self._empty(self._size)
        for id_hash, prompt_hash in zip(old_ids, old_prompts, strict=True):
            if id_hash:
                cell = self._cell(id_hash)
                self._ids[cell], self._prompts[cell] = id_hash, prompt_hash


def prompt_key(row: dict[str, Any]) -> object:
    """The messages and tools of a prompt row as a hashable value, equal for equal prompts."""
    texts = tuple([text for message in row["messages"] for text in message.values()])
    return (texts, repr(row["tools"])) if "tools" in row else texts
