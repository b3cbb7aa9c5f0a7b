"""The text of token ids, by a table of bytes where the tokenizer is byte-level.

A byte-level tokenizer (Radford et al. 2019, GPT-2) writes each byte of a token as one character
and decodes by the reverse mapping. A table of every token's bytes needs a quarter of its time.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from dflashq.core.token_ids import IdArray

_PLAIN = (*range(33, 127), *range(161, 173), *range(174, 256))


def _bytes_by_character() -> dict[str, int]:
    """The byte of each character: printable Latin-1 is itself, the others follow from U+0100."""
    others = (byte for byte in range(256) if byte not in set(_PLAIN))
    return {chr(byte): byte for byte in _PLAIN} | {
        chr(256 + number): byte for number, byte in enumerate(others)
    }


class Detokenizer:
    """Decodes as `tokenizer` (of the `tokenizers` library) does, special tokens included.

    The table is used only if it yields the tokenizer's own text for the whole vocabulary.
    Otherwise, and for ids without a token, the tokenizer itself decodes. As thread-safe as the
    tokenizer is.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        table = self._checked_table()
        # The bytes of every id; None for an id without a token.
        self._table = np.full(max(table, default=-1) + 1, None, np.object_)
        for number, piece in table.items():
            self._table[number] = piece

    @property
    def has_table(self) -> bool:
        """Whether the table is used: the tokenizer is byte-level, and the comparison was equal."""
        return len(self._table) > 0

    def __call__(self, ids: IdArray) -> str:
        """The text of `ids` (uint32, one dimension); bytes that are no UTF-8 become U+FFFD."""
        try:
            pieces = self._table.take(ids).tolist() if len(ids) else []
            return b"".join(pieces).decode("utf-8", "replace")
        except (IndexError, TypeError):  # no table, or an id without a token
            return self._by_tokenizer(ids.tolist())

    def _by_tokenizer(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=False)
        return text

    def _checked_table(self) -> dict[int, bytes]:
        """The bytes by token id; empty when the tokenizer decodes differently."""
        decoder = json.loads(self._tokenizer.to_str()).get("decoder") or {}
        if decoder.get("type") != "ByteLevel":
            return {}
        characters = _bytes_by_character()
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        table = {
            number: bytes(characters[c] for c in token)
            if all(c in characters for c in token)
            else token.encode()
            for token, number in vocabulary.items()
        }
        # In both orders: characters may span two tokens, so each token needs other neighbours.
        for ids in (sorted(table), sorted(table, reverse=True)):
            joined = b"".join(table[number] for number in ids)
            if joined.decode("utf-8", "replace") != self._by_tokenizer(ids):
                return {}
        return table
