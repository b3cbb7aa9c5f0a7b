"""The table of bytes says what the tokenizer says; where it would not, the tokenizer is asked."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models

from dflashq.core.token_ids import id_array
from dflashq.engine.detokenize import Detokenizer
from tests.support.sglang import TINY_MODEL as MODEL

TINY = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
DETOKENIZER = Detokenizer(TINY)
SIZE = TINY.get_vocab_size(with_added_tokens=True)


def text_of(ids: list[int]) -> str:
    return DETOKENIZER(id_array(ids))


def said(ids: list[int]) -> str:
    text: str = TINY.decode(ids, skip_special_tokens=False)
    return text


@given(st.lists(st.integers(0, SIZE - 1), max_size=60))
def test_any_ids_come_out_as_the_tokenizer_spells_them(ids: list[int]) -> None:
    """Torn characters, special tokens and bytes in any order included."""
    assert DETOKENIZER.has_table
    assert text_of(ids) == said(ids)


@given(st.text(max_size=60))
def test_text_comes_back(text: str) -> None:
    ids = TINY.encode(text, add_special_tokens=False).ids
    assert text_of(ids) == said(ids)


def test_an_id_without_a_token_is_left_to_the_tokenizer() -> None:
    ids = [SIZE + 5000, *TINY.encode("fine").ids]
    assert text_of(ids) == said(ids) == "fine"
    assert text_of([-1]) == ""


@pytest.mark.parametrize("decoder", [decoders.WordPiece(), None])
def test_another_decoder_has_no_table(decoder: Any) -> None:
    plain = Tokenizer(models.WordLevel({"a": 0, "Ġb": 1, "c": 2}, unk_token="c"))
    if decoder is not None:
        plain.decoder = decoder
    other = Detokenizer(plain)
    assert not other.has_table
    assert other(id_array([0, 1])) == plain.decode([0, 1])


def test_a_byte_level_vocabulary_with_foreign_tokens() -> None:
    """An added token that no byte spells is taken as it stands."""
    tokenizer = Tokenizer(models.WordLevel({"Ġa": 0, "Ã": 1, "¼": 2}, unk_token="Ġa"))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken("<a b>"), AddedToken("猫")])
    detokenizer = Detokenizer(tokenizer)
    assert detokenizer.has_table
    assert detokenizer(id_array([1, 2, 3, 4, 0, 1])) == "ü<a b>猫 a\ufffd"
