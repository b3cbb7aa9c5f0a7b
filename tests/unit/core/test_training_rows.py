"""Rows, packs, mixes and lengths: nothing lost, nothing invented, nothing re-rendered."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflashq.core.training_data.domain_mix import Mix
from dflashq.core.training_data.length_histogram import LengthHistogram
from dflashq.core.training_data.rows import (
    CUT,
    DROP,
    MIN_SUPERVISED,
    Row,
    packed,
    rows_of,
    truncate_row,
)
from tests.support.sample_rows import sample

lengths = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 80)), max_size=60)


def row(prompt: int, output: int, index: int = 0) -> Row:
    return Row([1] * prompt + [2] * output, prompt, "id", index, 0, "s", "d")


def test_a_row_is_the_exact_ids_with_only_the_output_supervised() -> None:
    one = sample(3, turns=2)
    first, second = rows_of(one)
    for turn, made in enumerate((first, second)):
        given_ids = one["generations"][turn]
        assert made.input_ids == given_ids["prompt_ids"] + given_ids["output_ids"]
        assert made.loss_mask == [0] * len(given_ids["prompt_ids"]) + [1] * 40
        assert (made.index, made.turn, made.id) == (3, turn, "p3")
        assert (made.source, made.domain) == ("s", "coding")
    assert set(first.to_json()) == {
        *("input_ids", "loss_mask", "id", "index", "turn", "source", "domain")
    }


@given(st.integers(0, 60), st.integers(1, 200), st.integers(1, 150), st.sampled_from([DROP, CUT]))
def test_a_long_row_is_dropped_or_cut_but_never_below_the_floor(
    prompt: int, output: int, longest: int, over: str
) -> None:
    whole = row(prompt, output)
    fit = truncate_row(whole, longest, over)
    if prompt + output <= longest:
        assert fit is whole
    elif over == DROP or longest - prompt < MIN_SUPERVISED:
        assert fit is None
    else:
        assert fit is not None
        assert fit.input_ids == whole.input_ids[:longest]
        assert fit.prompt_tokens == prompt
        assert fit.supervised == longest - prompt >= MIN_SUPERVISED
        assert sum(fit.loss_mask) == fit.supervised
        assert len(fit.loss_mask) == len(fit.input_ids)


def test_without_a_length_every_row_fits() -> None:
    whole = row(1000, 1)
    assert truncate_row(whole, None, DROP) is whole


@given(lengths, st.integers(130, 300))
def test_packs_hold_every_row_once_and_whole(sizes: list[tuple[int, int]], length: int) -> None:
    rows = [row(prompt, output, n) for n, (prompt, output) in enumerate(sizes)]
    seen: Counter[int] = Counter()
    for pack in packed(rows, length):
        made = pack.to_json()
        assert len(made["input_ids"]) == len(made["loss_mask"]) == made["boundaries"][-1] <= length
        assert made["boundaries"][0] == 0
        places = zip(made["boundaries"], made["boundaries"][1:], strict=False)
        for index, (start, end) in zip(made["indexes"], places, strict=True):
            assert made["input_ids"][start:end] == rows[index].input_ids
            assert made["loss_mask"][start:end] == rows[index].loss_mask
            seen[index] += 1
    assert seen == Counter(range(len(rows)))


def test_packs_are_full_where_rows_allow_it() -> None:
    rows = [row(5, 45, n) for n in range(1000)] + [row(5, 25, n) for n in range(1000)]
    packs = list(packed(rows, 100))
    assert [len(pack.to_json()["input_ids"]) for pack in packs[:500]] == [100] * 500
    assert len(packs) == 500 + 334


def test_a_row_that_fits_no_pack_is_refused() -> None:
    with pytest.raises(ValueError, match="60 ids does not fit a pack of 50"):
        list(packed([row(10, 50)], 50))


rows_by_domain = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c", "other"]), st.integers(1, 100)), max_size=80
)


@given(rows_by_domain, st.integers(0, 3), st.one_of(st.none(), st.integers(1, 3000)))
def test_a_mix_keeps_its_quotas(rows: list[tuple[str, int]], seed: int, budget: int | None) -> None:
    shares = {"a": 46.0, "b": 26.0, "c": 27.0}
    mix, again = Mix(shares, seed), Mix(shares, seed)
    for n, (domain, tokens) in enumerate(rows):
        mix.add(domain, (n, 0), tokens)
    for n, (domain, tokens) in reversed(list(enumerate(rows))):
        again.add(domain, (n, 0), tokens)
    chosen, quotas = mix.choose(budget)
    assert again.choose(budget)[0] == chosen, "the order of reading must not decide"
    assert mix.left_out.get("other", 0) == sum(domain == "other" for domain, _ in rows)
    for quota in quotas:
        own = [n for n, (domain, _) in enumerate(rows) if domain == quota.domain]
        taken = [n for n in own if (n, 0) in chosen]
        assert quota.rows == len(taken)
        assert quota.available == sum(rows[n][1] for n in own)
        assert quota.chosen == sum(rows[n][1] for n in taken) <= quota.quota
        assert quota.short == max(0, quota.quota - quota.available)
        if len(taken) < len(own):
            assert quota.chosen > quota.quota - 100, "less than one row is missing"
    if budget is None:
        assert all(quota.short == 0 for quota in quotas)


def test_another_seed_takes_other_rows() -> None:
    taken = []
    for seed in (1, 2):
        mix = Mix({"a": 1.0, "b": 1.0}, seed)
        for n in range(200):
            mix.add("a" if n < 150 else "b", (n, 0), 10)
        chosen, quotas = mix.choose(None)
        assert [quota.chosen for quota in quotas] == [500, 500]
        assert mix.scarcest == "b"
        taken.append(chosen)
    assert taken[0] != taken[1]


@given(st.lists(st.integers(0, 500), min_size=1, max_size=200))
def test_lengths_are_exact(values: list[int]) -> None:
    found = LengthHistogram()
    for value in values:
        found.add(value)
    ordered = sorted(values)
    assert found.percentile(0.5) == ordered[(len(values) + 1) // 2 - 1]
    assert found.percentile(1.0) == max(values)
    assert found.mean == pytest.approx(sum(values) / len(values))
    bins = found.histogram()
    assert sum(count for _, _, count in bins) == len(values)
    for first, last, count in bins:
        assert count == sum(first <= value <= last for value in values)
    length, share = found.most_common()
    assert share == values.count(length) / len(values)


def test_no_lengths_are_zeros() -> None:
    told = LengthHistogram().to_json()
    assert (told["count"], told["mean"], told["p99"], told["histogram"]) == (0, 0.0, 0, [])
