"""Verdicts on generations, decided on token ids alone; text is never read."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dflashq.core.generations.segments import OutputSegments, TokenKinds
from dflashq.core.generations.special_tokens import CLOSE, END, OPEN, TEMPLATE, SpecialTokens
from dflashq.core.model import Checks, Generation, Verdict
from dflashq.core.token_ids import IdArray, Ids

REASONS = {
    "corrupt": "the ids are no answer of this model: forged stop, unknown id, wrong or inner end",
    "empty": "nothing but end tokens",
    "clamped": "cut off by the server before max_new_tokens: context or memory ran out",
    "looping": "thinking or answer goes round in circles: a repeated piece, or few new n-grams",
    "bad_markup": "think or template tokens where none may be",
    "truncated": "max_new_tokens reached before the end",
    "no_answer": "thinking never closed, or nothing but whitespace after it",
    "stub": "an answer below min_answer_tokens, or one output that many prompts got",
    "refused_input": "the engine or the chat template refused the prompt",
    "too_long": "the prompt leaves no room for an answer in the context",
    "engine_crash": "the engine died each time this prompt was in flight",
    "engine_error": "engines kept failing on this prompt while they answered others",
    "internal_error": "dflashq itself failed on this prompt or its answer, and on no other",
    "unrecorded": "settled as rejected, but its record was lost before it was stored",
}

OPENING = 8  # ids in which a chat template opens the assistant's turn, at most
_REMAINDERS = 8192  # several times the default `ngram_window`, so that few ids share one


class CheckInput(NamedTuple):
    """One generation with all that the rules need; `limit` is the `max_new_tokens` it had."""

    generation: Generation
    output: OutputSegments
    kinds: TokenKinds
    checks: Checks
    limit: int

    @property
    def ids(self) -> Ids:
        return self.generation.output_ids


def judge(
    generation: Generation, output: OutputSegments, *, checks: Checks, max_new_tokens: int
) -> Verdict:
    """Accepted, or rejected by the first rule that the generation breaks, with its numbers.

    `output` are the segments of `generation`; `max_new_tokens` is the limit of this request.
    Pure: the same generation always gets the same verdict.
    """
    case = CheckInput(generation, output, TokenKinds(output), checks, max_new_tokens)
    for reason, rule in _RULES:
        detail = rule(case)
        if detail is not None:
            return Verdict(reason, detail)
    return Verdict()


def _forged_stop(case: CheckInput) -> str | None:
    # After a NaN in the logits, an engine ends with an end token that the model never chose.
    if isinstance(case.generation.matched, str):
        return f"the engine stopped at {case.generation.matched!r}, which nobody asked for"
    if case.generation.finish_reason not in ("stop", "length"):
        return f"finish reason {case.generation.finish_reason!r} is neither stop nor length"
    return None


def _unknown_id(case: CheckInput) -> str | None:
    if case.kinds.known:
        return None
    size = case.output.markers.vocab_size
    place = next(n for n, token in enumerate(case.ids) if not 0 <= token < size)
    return f"id {case.ids[place]} at {place} of {len(case.ids)} is outside the vocabulary of {size}"


def _wrong_end(case: CheckInput) -> str | None:
    # Without ids there is no last one to compare; the rule `empty` rejects that.
    if case.generation.finish_reason != "stop" or not len(case.ids):
        return None
    matched, last = case.generation.matched, case.ids[-1]
    if matched not in case.output.markers.end_ids:
        return f"the engine stopped at {matched}, which is no end token"
    return None if last == matched else f"the last id is {last}, but the stop is {matched}"


def _inner_end(case: CheckInput) -> str | None:
    ends = case.kinds.places(END)
    if not ends:
        return None
    token, length = case.ids[ends[0]], len(case.ids)
    return f"end token {token} at {ends[0]}, before the last of {length} ids"


def _empty(case: CheckInput) -> str | None:
    if all(token in case.output.markers.end_ids for token in case.ids):
        return f"{len(case.ids)} ids, none of them but end tokens"
    return None


def _clamped(case: CheckInput) -> str | None:
    got = len(case.ids)
    if case.generation.finish_reason == "length" and got != case.limit:
        return f"cut at {got} ids by the server, {case.limit} were asked for"
    return None


def _truncated(case: CheckInput) -> str | None:
    if case.generation.finish_reason == "length" and len(case.ids) == case.limit:
        return f"cut at max_new_tokens = {case.limit}"
    return None


def _looping(case: CheckInput) -> str | None:
    output, known = case.output, case.checks
    for name, part in (("thinking", output.thought), ("answer", output.answer)):
        ids = output.ids[part]
        if period := loop_period(ids, known):
            times = _repeats(ids.tolist(), period)
            return f"the {name} ends in a piece of {period} ids repeated {times} times"
        share = 1.0 if _varied(ids, known) else distinct_share(ids.tolist(), known)
        if share < known.ngram_min_distinct:
            return (
                f"of the last {known.ngram_window} ids of the {name} only {share:.0%} of "
                f"the {known.ngram}-grams are different"
            )
    return None


def _varied(ids: IdArray, checks: Checks) -> bool:
    """Whether enough distinct ids begin n-grams in the tail. `ids`: uint32, shape (number of ids,).

    There are at least as many distinct n-grams as distinct first ids, so True spares counting the
    n-grams, in a hundredth of the time; nearly every text passes here. The ids are counted by their
    remainders, of which there are at most as many as of the ids.
    """
    if len(ids) < checks.ngram_window:
        return True
    firsts = ids[-checks.ngram_window : 1 - checks.ngram or None]
    present = np.zeros(_REMAINDERS, np.bool_)
    present[firsts % _REMAINDERS] = True
    return bool(np.count_nonzero(present) >= checks.ngram_min_distinct * len(firsts))


def distinct_share(ids: list[int], checks: Checks) -> float:
    """The share of distinct n-grams in the last `ngram_window` ids; 1 for a shorter text.

    This finds the loops that `loop_period` misses: those whose repeats differ a little.
    """
    if len(ids) < checks.ngram_window:
        return 1.0
    tail, size = ids[-checks.ngram_window :], checks.ngram
    # zip over shifted copies builds the n-grams in C, without a step of Python for each.
    grams = set(zip(*(tail[n:] for n in range(size)), strict=False))
    return len(grams) / (len(tail) - size + 1)


def loop_period(ids: IdArray, checks: Checks) -> int:
    """The shortest period, in ids, with which the tail of `ids` repeats; 0 when it does not.

    `ids` is a uint32 array of shape (number of ids,). The tail is `loop_window` ids or
    `loop_min_repeats` periods, whichever is longer.
    """
    if len(ids) < checks.loop_window:
        return 0
    # In a loop, the id one period before the last id equals it. Most texts have no such place.
    before = ids[-1 - checks.loop_max_period : -1][::-1]
    for place in (before == ids[-1]).nonzero()[0].tolist():
        period = place + 1
        width = max(checks.loop_window, period * checks.loop_min_repeats)
        if width <= len(ids) and np.array_equal(ids[-width + period :], ids[-width:-period]):
            return int(period)
    return 0


def _repeats(ids: list[int], period: int) -> int:
    """How many times in a row the last `period` ids repeat at the end of `ids`."""
    place = len(ids) - period - 1
    while place >= 0 and ids[place] == ids[place + period]:
        place -= 1
    return (len(ids) - place - 1) // period


def _bad_markup(case: CheckInput) -> str | None:
    output, kinds = case.output, case.kinds
    if strays := kinds.places(TEMPLATE):
        return f"{len(strays)} template tokens in the output, the first is {case.ids[strays[0]]}"
    opens, closes = kinds.places(OPEN), len(kinds.places(CLOSE))
    if closes > (1 if output.thinks else 0):
        return f"{closes} </think>, thinking {'asked for' if output.thinks else 'not asked for'}"
    may_open = output.thinks and not _opened(case.generation.prompt_ids, output.markers)
    if opens and not (may_open and opens == [0]):
        may = "may only come first" if may_open else "may not come"
        return f"{len(opens)} <think>, which {may}"
    return None


def _opened(prompt: Ids, markers: SpecialTokens) -> bool:
    """Whether the prompt ends inside an open `<think>`, as the template of Qwen3.6 leaves it."""
    # Only the template's opening of the turn counts: the user may have written `<think>` as well.
    for token in prompt[: -OPENING - 1 : -1]:
        if token in (markers.think_open, markers.think_close):
            return token == markers.think_open
    return False


def _no_answer(case: CheckInput) -> str | None:
    output = case.output
    if output.thinks and output.boundary is None:
        return f"thinking never closed in {output.end} ids"
    if case.kinds.spoken == 0:
        answer, thought = output.answer, output.thought
        length = answer.stop - answer.start
        return f"{length} ids of answer, all whitespace, after {thought.stop} ids"
    return None


def _stub(case: CheckInput) -> str | None:
    wanted = case.checks.min_answer_tokens
    if case.kinds.spoken < wanted:
        return f"{case.kinds.spoken} ids of answer, at least {wanted} wanted"
    return None


# The first broken rule gives the reason: rules that say more about the cause come first, and
# `truncated` comes after the rules on what a good prefix must look like.
_RULES: tuple[tuple[str, Callable[[CheckInput], str | None]], ...] = (
    ("corrupt", _forged_stop),
    ("corrupt", _unknown_id),
    ("corrupt", _wrong_end),
    ("empty", _empty),
    ("corrupt", _inner_end),
    ("clamped", _clamped),
    ("looping", _looping),
    ("bad_markup", _bad_markup),
    ("truncated", _truncated),
    ("no_answer", _no_answer),
    ("stub", _stub),
)
