"""The parts of a generation: what arrays say is what a look at each id says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dflashq.core.generations.segments import OutputSegments, TokenKinds
from dflashq.core.generations.special_tokens import (
    CLOSE,
    END,
    OPEN,
    TEMPLATE,
    SpecialTokens,
    kinds_of,
)
from dflashq.core.token_ids import NO_ID, id_array

MARKERS = SpecialTokens(
    end_ids=frozenset({4, 5}),
    think_open=2,
    think_close=3,
    template_ids=frozenset({1}),
    vocab_size=20,
    blank_ids=frozenset({6, 7}),
)
BY_KIND = {END: {4, 5}, OPEN: {2}, CLOSE: {3}, TEMPLATE: {1}}


def output_of(
    ids: list[int], markers: SpecialTokens = MARKERS, *, thinking: bool = True
) -> OutputSegments:
    return OutputSegments(id_array(ids), markers, thinking=thinking)


any_ids = st.lists(st.integers(-3, 25) | st.sampled_from([2**63, -(2**64), 2**70]), max_size=30)


@given(any_ids, st.booleans())
def test_places_are_where_the_ids_stand(ids: list[int], thinking: bool) -> None:
    output = output_of(ids, thinking=thinking)
    body = ids[:-1] if ids and ids[-1] in MARKERS.end_ids else ids
    assert output.end == len(body)
    marks = TokenKinds(output)
    assert marks.known == all(0 <= token < 20 for token in ids)
    for kind, of_it in BY_KIND.items():
        assert marks.places(kind) == [n for n, token in enumerate(body) if token in of_it]


@given(any_ids)
def test_thinking_boundary_and_answer_make_up_the_whole(ids: list[int]) -> None:
    output = output_of(ids)
    body = ids[: output.end]
    thought, answer = body[output.thought], body[output.answer]
    if 3 in body:
        assert [*thought, 3, *answer] == body
        assert 3 not in thought
    else:
        assert (thought, answer) == (body, [])
    assert output.reasoning_tokens == len(body) - len(answer)
    assert TokenKinds(output).spoken == sum(token not in MARKERS.blank_ids for token in answer)


@given(any_ids)
def test_without_thinking_all_is_answer(ids: list[int]) -> None:
    output = output_of(ids, thinking=False)
    assert ids[output.answer] == ids[: output.end]
    assert (ids[output.thought], output.boundary) == ([], None)


def test_an_end_token_beyond_the_vocabulary_is_still_one() -> None:
    markers = SpecialTokens(frozenset({30}), None, None, frozenset(), 20)
    assert kinds_of(markers)[30] == END
    assert TokenKinds(output_of([30, 7, 30], markers, thinking=False)).places(END) == [0]


@given(st.lists(st.integers(0, 2**32 - 1)))
def test_ids_of_32_bits_are_exact(ids: list[int]) -> None:
    assert id_array(ids).tolist() == ids


@given(any_ids)
def test_no_number_beyond_them_passes_for_an_id(ids: list[int]) -> None:
    expected = [token if 0 <= token < NO_ID else NO_ID for token in ids]
    assert id_array(ids).tolist() == expected
