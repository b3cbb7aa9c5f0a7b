"""Stored formats: fields of a newer version are ignored, a newer major version is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflashq.core import codec
from dflashq.core.errors import NewerFormatError
from dflashq.core.model import (
    BatchRecord,
    Generation,
    Guard,
    ObjectRef,
    Prompt,
    RetryStep,
    RunRecord,
    RunSpec,
    Sampling,
)
from dflashq.core.schema import VERSION, refuse_newer
from dflashq.ledger.kept_codec import decode_generation, decode_kept, failure_entry
from dflashq.ledger.models import Failure

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
leaves = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts
# No record of ours has a field that begins so.
foreign = st.dictionaries(
    texts.map("x_".__add__), leaves | st.lists(leaves) | st.dictionaries(texts, leaves), min_size=1
)
messages = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user"]), "content": texts})
)
prompts = st.builds(
    Prompt,
    index=st.integers(0, 10**9),
    id=texts,
    messages=messages,
    source=st.none() | texts,
    domain=st.none() | texts,
    tools=st.none() | st.lists(st.dictionaries(texts, leaves), min_size=1),
)
ids = st.lists(st.integers(0, 2**32 - 2), max_size=20)
generations = st.builds(
    Generation,
    prompt_ids=ids,
    output_ids=ids,
    finish_reason=texts,
    matched=st.none() | texts | st.integers(0, 10**6),
    engine=texts,
)
references = st.builds(
    ObjectRef,
    key=texts,
    sha256=texts,
    fingerprint=texts,
    counts=st.dictionaries(texts, st.integers(0, 10**9)),
    rejected_key=st.none() | texts,
    rejected_sha256=st.none() | texts,
)
batches = st.builds(
    BatchRecord,
    name=texts,
    key=texts,
    sha256=texts,
    prompts=st.integers(1, 1000),
    first=st.integers(0, 10**9),
    last=st.integers(0, 10**9),
)
specs = st.builds(
    RunSpec,
    model=texts,
    revision=texts,
    queue=texts,
    thinking=st.booleans(),
    sampling=st.builds(Sampling, max_new_tokens=st.integers(1, 10**6)),
    guard=st.builds(Guard, canary=st.integers(0, 48)),
    ladder=st.lists(st.builds(RetryStep, reasons=st.just(("truncated",)))).map(tuple),
)
runs = st.builds(
    RunRecord,
    name=texts,
    spec=specs,
    prompts=st.integers(1, 10**9),
    prompts_sha256=texts,
    batches=st.lists(batches, max_size=3),
    fingerprint=texts,
    created=texts,
    version=texts,
)


@given(prompts, foreign)
def test_a_prompt_of_a_newer_minor_version_is_read(prompt: Prompt, more: dict[str, Any]) -> None:
    """One unknown field in a prompt row failed every batch on the older workers of a fleet."""
    line = codec.encode_rows([{**prompt.to_json(), **more}])
    assert [Prompt.from_json(row) for row in codec.decode_rows(line)] == [prompt]


@given(generations, foreign)
def test_a_kept_generation_of_a_newer_minor_version_is_read(
    generation: Generation, more: dict[str, Any]
) -> None:
    payload = codec.compress(codec.encode_line({**generation.to_json(), **more}))
    assert decode_generation(payload) == generation


@given(texts, texts, foreign)
def test_a_kept_failure_of_a_newer_minor_version_is_read(
    worker: str, words: str, more: dict[str, Any]
) -> None:
    failure = Failure(worker, words)
    field, payload = failure_entry(7, failure)
    row = next(codec.decode_rows(payload))
    payload = codec.compress(codec.encode_line({**row, **more}))
    assert decode_kept({field.encode(): payload}).failures == {7: failure}


@given(references, foreign)
def test_a_reference_is_written_back_as_it_was_read(ref: ObjectRef, more: dict[str, Any]) -> None:
    """The ledger compares references as texts: one without its newer fields is another one."""
    row = {**ref.to_json(), **more}
    again = ObjectRef.from_json(row)
    assert again.to_json() == row
    assert (again.key, again.sha256, again.counts) == (ref.key, ref.sha256, ref.counts)
    assert ObjectRef.from_json(ref.to_json()) == ref


@given(runs, foreign, foreign)
def test_a_run_of_a_newer_minor_version_is_read(
    run: RunRecord, more: dict[str, Any], more_of_a_batch: dict[str, Any]
) -> None:
    row = run.to_json()
    row["batches"] = [{**batch, **more_of_a_batch} for batch in row["batches"]]
    assert RunRecord.from_json({**row, **more}) == run


@given(runs, foreign, st.sampled_from([None, "sampling", "checks", "guard"]))
def test_a_spec_that_asks_for_something_unknown_is_refused(
    run: RunRecord, more: dict[str, Any], section: str | None
) -> None:
    """It decides what is generated: without the unknown part, other samples would be made."""
    row = run.to_json()
    target = row["spec"] if section is None else row["spec"][section]
    target.update(more)
    with pytest.raises(NewerFormatError, match=r"the run's spec asks.*pip install"):
        RunRecord.from_json(row)


@given(st.integers(0, VERSION), st.none() | st.integers(0, 99))
def test_our_major_version_is_read_whatever_its_minor(major: int, minor: int | None) -> None:
    refuse_newer(f"{major}.{minor}" if minor is not None else major, "it")


def test_what_has_no_version_is_the_first_version() -> None:
    refuse_newer(None, "it")


@given(st.integers(VERSION + 1, 10**9), st.sampled_from(["{}", "{}.0", "{}.7"]))
def test_a_newer_major_version_is_refused_with_what_to_do(major: int, spelling: str) -> None:
    with pytest.raises(NewerFormatError, match=r"runs/r/run.json has the .*`pip install -U"):
        refuse_newer(spelling.format(major), "runs/r/run.json")


@pytest.mark.parametrize("version", ["", "newest", "-1", ".5", "v2"])
def test_what_is_no_version_is_refused(version: str) -> None:
    with pytest.raises(NewerFormatError):
        refuse_newer(version, "it")
