"""Text of token ids: by a table of bytes where the tokenizer's decoder is byte-level.

A byte-level tokenizer spells each byte of a token as one character, and decodes by turning them
back (Radford et al. 2019, GPT-2). Looking the bytes up costs a quarter of the tokenizer's time.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from dflashq.core.token_ids import IdArray

_PLAIN = (*range(33, 127), *range(161, 173), *range(174, 256))


def _bytes_by_character() -> dict[str, int]:
    """The byte behind each character: printable Latin ones are themselves, the rest follow 255."""
    others = (byte for byte in range(256) if byte not in set(_PLAIN))
    return {chr(byte): byte for byte in _PLAIN} | {
        chr(256 + number): byte for number, byte in enumerate(others)
    }


class Detokenizer:
    """Decodes as `tokenizer` (of the `tokenizers` library) does, special tokens included.

    The table is taken only if it gives the tokenizer's own text for its whole vocabulary; else,
    and for ids that are none, the tokenizer is asked.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        spelled = self._checked_table()
        # The bytes of every id, None for one without a token.
        self._table = np.full(max(spelled, default=-1) + 1, None, np.object_)
        for number, piece in spelled.items():
            self._table[number] = piece

    @property
    def has_table(self) -> bool:
        """Whether the tokenizer is byte-level and the table stood the comparison."""
        return len(self._table) > 0

    def __call__(self, ids: IdArray) -> str:
        """The text of `ids`; what is no UTF-8 becomes U+FFFD."""
        try:
            pieces = self._table.take(ids).tolist() if len(ids) else []
            return b"".join(pieces).decode("utf-8", "replace")
        except (IndexError, TypeError):  # no table, or an id without a token: the tokenizer knows
            return self._slowly(ids.tolist())

    def _slowly(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=False)
        return text

    def _checked_table(self) -> dict[int, bytes]:
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
        # Up and down, so that no token has the same neighbours twice.
        for ids in (sorted(table), sorted(table, reverse=True)):
            joined = b"".join(table[number] for number in ids)
            if joined.decode("utf-8", "replace") != self._slowly(ids):
                return {}
        return table
