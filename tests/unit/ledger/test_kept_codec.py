"""Kept generations: what is stored is what comes back, to the id."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflashq.core import codec
from dflashq.core.model import Generation
from dflashq.core.token_ids import id_array
from dflashq.ledger.kept_codec import (
    decode_generation,
    decode_kept,
    encode_generation,
    generation_field,
)

token = st.integers(0, 300_000) | st.integers(0, 2**32 - 2)
ids = st.lists(token, max_size=40)
# Few ids many times over, so that long outputs are drawn as quickly as short ones.
long = st.builds(lambda piece, times: piece * times, st.lists(token, min_size=5), st.just(200))
no_id = st.sampled_from([-1, 2**32 - 1, 2**32, 2**63, -(2**40)])


def listed(generation: Generation) -> dict[str, Any]:
    row = generation.to_json()
    return row | {name: list(map(int, row[name])) for name in ("prompt_ids", "output_ids")}


@given(ids, ids | long, st.sampled_from(["stop", "length"]), st.none() | st.integers(0, 2**31))
def test_a_generation_comes_back_whole(
    prompt: list[int], output: list[int], finish: str, matched: int | None
) -> None:
    made = Generation(prompt, output, finish, matched, 2.5, 1.25, "engine", 7.125)
    again = decode_generation(encode_generation(made))
    assert listed(again) == made.to_json()
    assert again.output_array.tolist() == output


@given(long, no_id, st.integers(0, 900))
def test_what_is_no_id_is_kept_as_it_came(output: list[int], odd: int, place: int) -> None:
    output.insert(place, odd)
    made = Generation([1, 2], output, "stop", odd)
    assert decode_generation(encode_generation(made)) == made


@given(ids, long)
def test_arrays_are_kept_as_lists_are(prompt: list[int], output: list[int]) -> None:
    """What was read from one ledger may have to be kept in the next one."""
    made = Generation(prompt, output, "stop", 2)
    arrays = Generation(id_array(prompt), id_array(output), "stop", 2)
    assert encode_generation(arrays) == encode_generation(made)


def test_ids_that_were_lost_are_missed() -> None:
    whole = codec.decompress(encode_generation(Generation([1], [5] * 1000, "stop", 5)))
    with pytest.raises(ValueError, match="996 ids are kept where 1 \\+ 1000 should be"):
        decode_generation(codec.compress(whole[:-20]))


def test_a_kept_hash_is_told_apart_by_its_fields() -> None:
    long_one, short = Generation([1], [7] * 900, "stop", 7), Generation([1], [7, 2], "stop", 2)
    fields = {
        generation_field(3, 0): encode_generation(long_one),
        generation_field(3, 10_000): encode_generation(short),
    }
    kept = decode_kept({name.encode(): payload for name, payload in fields.items()})
    assert {place: listed(generation) for place, generation in kept.generations.items()} == {
        (3, 0): long_one.to_json(),
        (3, 10_000): short.to_json(),
    }
    assert kept.entries == fields


@pytest.mark.parametrize("field", ["5:0", "5:v", "5:f", "5:sx", "x:0", "5:"])
@pytest.mark.parametrize("payload", [b"", b"junk", codec.compress(b"[1]\n"), codec.compress(b"{}")])
def test_a_damaged_entry_costs_only_itself(field: str, payload: bytes) -> None:
    """One of them made every attempt on its batch fail, until the batch was dead."""
    whole = Generation([1], [7, 2], "stop", 2)
    raw = {b"6:0": encode_generation(whole), field.encode(): payload, b"bytes": b"12"}
    kept = decode_kept(raw)
    assert kept.generations == {(6, 0): whole}
    assert kept.damaged == [field]
    assert set(kept.entries) == {"6:0"}
