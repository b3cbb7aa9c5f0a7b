"""Rows as bytes and back: both encoders, every level, torn objects."""

from __future__ import annotations

import contextlib
import json
import math
import random
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from dflashq.core import codec

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
numbers = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
leaves = st.none() | st.booleans() | numbers | text
rows = st.dictionaries(text, leaves | st.lists(numbers) | st.dictionaries(text, leaves))


@given(rows)
def test_both_encoders_say_the_same(row: dict[str, Any]) -> None:
    lines = codec.encode_line(row), codec.encode_generated(row)
    assert [json.loads(line) for line in lines] == [row, row]
    assert all(line.count(b"\n") == 1 and line.endswith(b"\n") for line in lines)


@given(st.lists(rows, max_size=4), st.sampled_from([codec.FAST_LEVEL, codec.LEVEL]))
def test_what_is_packed_comes_back(given: list[dict[str, Any]], level: int) -> None:
    packed = b"".join(codec.compress(codec.encode_generated(row), level) for row in given)
    if given:
        assert list(codec.decode_rows(packed)) == given


@given(st.lists(rows, max_size=4), st.sampled_from([codec.FAST_LEVEL, codec.LEVEL]))
def test_pieces_make_one_frame(given: list[dict[str, Any]], level: int) -> None:
    """Readers that stop behind the first frame, and those that ask for its size, get everything."""
    lines = [codec.encode_generated(row) for row in given]
    packed, content = codec.compress_all(iter(lines), level), b"".join(lines)
    frame = zstandard.ZstdDecompressor().decompressobj()
    assert frame.decompress(packed) == content
    assert frame.eof
    assert not frame.unused_data
    assert zstandard.ZstdDecompressor().decompress(packed) == content
    assert zstandard.frame_content_size(packed) == len(content)
    assert zstandard.get_frame_parameters(packed).has_checksum
    assert list(codec.decode_rows(packed)) == given


@pytest.mark.parametrize("count", [0, 1, 3, 200])
def test_long_pieces_make_one_frame(count: int) -> None:
    """Of more than one block, and of more than one window."""
    pieces = [random.Random(number).randbytes(100_000) for number in range(count)]
    packed = codec.compress_all(iter(pieces), codec.FAST_LEVEL)
    assert zstandard.ZstdDecompressor().decompress(packed) == b"".join(pieces)
    assert codec.decompress(packed) == b"".join(pieces)


def test_a_frame_is_written_without_a_second_copy() -> None:
    """Neither of its pieces, which are never in memory together, nor of itself."""
    noise = random.Random(5).randbytes(2**22)

    def pieces() -> Iterator[bytes]:
        yield from (noise[start:] + noise[:start] for start in range(8))

    tracemalloc.start()
    try:
        packed = codec.compress_all(pieces(), codec.FAST_LEVEL)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(packed) > 7 * len(noise)
    assert peak < 1.5 * len(packed)


def test_a_frame_that_states_another_size_than_it_has_is_refused() -> None:
    """The size in the header is part of what is checked."""
    packed = bytearray(codec.compress_all([b"some", b"thing"]))
    packed[6] += 1
    with pytest.raises(ValueError, match="whole zstd object"):
        codec.decompress(bytes(packed))


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        codec.encode_line({"n": math.nan})
    with pytest.raises(TypeError):
        codec.encode_generated({"n": object()})


def test_threads_do_not_share_a_compressor() -> None:
    bodies = [bytes([n]) * 200_000 for n in range(32)]
    with ThreadPoolExecutor(8) as pool:
        packed = list(pool.map(codec.compress, bodies))
    assert [codec.decompress(body) for body in packed] == bodies


@given(st.binary(max_size=200), st.integers(0, 60))
def test_a_torn_object_is_refused(body: bytes, kept: int) -> None:
    packed = codec.compress(body)
    if kept < len(packed):
        with pytest.raises(ValueError, match="whole zstd object"):
            codec.decompress(packed[:kept])


@pytest.mark.parametrize("pack", [codec.compress, lambda body: codec.compress_all([body])])
def test_no_flipped_bit_passes_or_takes_all_memory(pack: Callable[[bytes], bytes]) -> None:
    """Also where it says how large the whole would be."""
    body = bytes(range(256)) * 4
    packed = pack(body)
    for bit in range(8 * len(packed)):
        torn = bytearray(packed)
        torn[bit // 8] ^= 1 << bit % 8
        with contextlib.suppress(ValueError):
            assert codec.decompress(bytes(torn)) == body
