"""Which ids have been seen, and with which prompt: 16 bytes a slot, for millions of ids."""

from __future__ import annotations

from array import array
from typing import Any

_MASK = (1 << 64) - 1


class DuplicateIdIndex:
    """An open-addressing table from the hash of an id to the hash of its first prompt.

    Hashes have 64 bits: among a million ids one false hit has a chance of 1 in 10^7, and a hit
    only adds a reason word to a row. 32 MB for a million ids.
    """

    def __init__(self) -> None:
        self._size = 1 << 12
        self._count = 0
        self._ids, self._prompts = self._empty(self._size)

    def repeated(self, key: object, prompt: object) -> bool:
        """True when `key` was seen before with another prompt; remembers its first prompt."""
        id_hash = (hash(key) & _MASK) or 1
        prompt_hash = hash(prompt) & _MASK
        slot = self._slot(id_hash)
        if self._ids[slot]:
            return self._prompts[slot] != prompt_hash
        self._ids[slot], self._prompts[slot] = id_hash, prompt_hash
        self._count += 1
        if self._count * 3 > self._size * 2:
            self._grow()
        return False

    @staticmethod
    def _empty(size: int) -> tuple[array[int], array[int]]:
        return array("Q", bytes(8 * size)), array("Q", bytes(8 * size))

    def _slot(self, id_hash: int) -> int:
        """The slot that holds `id_hash`, or the free one where it belongs."""
        ids, mask = self._ids, self._size - 1
        slot = (id_hash ^ id_hash >> 32) & mask
        while ids[slot] and ids[slot] != id_hash:
            slot = (slot + 1) & mask
        return slot

    def _grow(self) -> None:
        old_ids, old_prompts = self._ids, self._prompts
        self._size *= 2
        self._ids, self._prompts = self._empty(self._size)
        for id_hash, prompt_hash in zip(old_ids, old_prompts, strict=True):
            if id_hash:
                slot = self._slot(id_hash)
                self._ids[slot], self._prompts[slot] = id_hash, prompt_hash


def prompt_key(row: dict[str, Any]) -> object:
    """What makes two prompt rows the same prompt: messages and tools, hashable."""
    texts = tuple([text for message in row["messages"] for text in message.values()])
    return (texts, repr(row["tools"])) if "tools" in row else texts
