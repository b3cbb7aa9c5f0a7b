"""Verdicts on generations, decided on token ids alone: text is never looked at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

from dflashq.core.markers import Markers
from dflashq.core.model import Checks, Generation, Verdict

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
    "unrecorded": "settled as rejected, but its record was lost before it was stored",
}

OPENING = 8  # ids in which a chat template opens the assistant's turn, at most


@dataclass(frozen=True)
class Case:
    """One generation seen by the rules: its ids cut into thinking, answer and end."""

    generation: Generation
    checks: Checks
    limit: int
    markers: Markers
    thinking: bool

    @property
    def ids(self) -> list[int]:
        return self.generation.output_ids

    @cached_property
    def body(self) -> list[int]:
        """The ids without the end token that closes them."""
        closed = self.ids and self.ids[-1] in self.markers.end_ids
        return self.ids[:-1] if closed else self.ids

    @cached_property
    def distinct(self) -> frozenset[int]:
        """The different ids of the body: most rules only ask whether some id is there at all."""
        return frozenset(self.body)

    @property
    def thinks(self) -> bool:
        """Thinking was asked for and the model knows how."""
        return self.thinking and self.markers.think_close is not None

    @cached_property
    def boundary(self) -> int | None:
        """Where `</think>` stands; None when it does not, or when no thinking was asked for."""
        close = self.markers.think_close
        if not self.thinks or close is None or close not in self.distinct:
            return None
        return self.body.index(close)

    @cached_property
    def thought(self) -> list[int]:
        return self.body[: self.boundary] if self.thinks else []

    @cached_property
    def answer(self) -> list[int]:
        """What follows the thinking; nothing when it never closed."""
        if not self.thinks:
            return self.body
        return [] if self.boundary is None else self.body[self.boundary + 1 :]

    def spoken(self, enough: int) -> int:
        """How many ids of the answer are more than whitespace, counted up to `enough`."""
        blank = self.markers.blank_ids
        return sum(
            1 for _ in islice((token for token in self.answer if token not in blank), enough)
        )


def judge(
    generation: Generation,
    *,
    checks: Checks,
    max_new_tokens: int,
    markers: Markers,
    thinking: bool,
) -> Verdict:
    """accepted, or the first rule that the generation breaks, with its numbers in a sentence.

    `max_new_tokens` is what this request asked for; `thinking` what its prompt was rendered with.
    Pure: the same generation always gets the same verdict.
    """
    case = Case(generation, checks, max_new_tokens, markers, thinking)
    for reason, rule in _RULES:
        detail = rule(case)
        if detail is not None:
            return Verdict(reason, detail)
    return Verdict()


def _forged_stop(case: Case) -> str | None:
    # A NaN in the logits is answered with an end token that the model never chose.
    if isinstance(case.generation.matched, str):
        return f"the engine stopped at {case.generation.matched!r}, which nobody asked for"
    if case.generation.finish_reason not in ("stop", "length"):
        return f"finish reason {case.generation.finish_reason!r} is neither stop nor length"
    return None


def _unknown_id(case: Case) -> str | None:
    size = case.markers.vocab_size
    if not case.distinct or (min(case.distinct) >= 0 and max(case.distinct) < size):
        return None
    place = next(n for n, token in enumerate(case.ids) if not 0 <= token < size)
    return f"id {case.ids[place]} at {place} of {len(case.ids)} is outside the vocabulary of {size}"


def _wrong_end(case: Case) -> str | None:
    # Without any ids there is no last one to compare: that is `empty`.
    if case.generation.finish_reason != "stop" or not case.ids:
        return None
    matched, last = case.generation.matched, case.ids[-1]
    if matched not in case.markers.end_ids:
        return f"the engine stopped at {matched}, which is no end token"
    return None if last == matched else f"the last id is {last}, but the stop is {matched}"


def _inner_end(case: Case) -> str | None:
    if case.markers.end_ids.isdisjoint(case.distinct):
        return None
    place = next(n for n, token in enumerate(case.body) if token in case.markers.end_ids)
    return f"end token {case.body[place]} at {place}, before the last of {len(case.ids)} ids"


def _empty(case: Case) -> str | None:
    if all(token in case.markers.end_ids for token in case.ids):
        return f"{len(case.ids)} ids, none of them but end tokens"
    return None


def _clamped(case: Case) -> str | None:
    got = len(case.ids)
    if case.generation.finish_reason == "length" and got != case.limit:
        return f"cut at {got} ids by the server, {case.limit} were asked for"
    return None


def _truncated(case: Case) -> str | None:
    if case.generation.finish_reason == "length" and len(case.ids) == case.limit:
        return f"cut at max_new_tokens = {case.limit}"
    return None


def _looping(case: Case) -> str | None:
    for name, part in (("thinking", case.thought), ("answer", case.answer)):
        period = loop_period(part, case.checks)
        if period:
            times = _repeats(part, period)
            return f"the {name} ends in a piece of {period} ids repeated {times} times"
        share = 1.0 if _varied(part, case.checks) else distinct_share(part, case.checks)
        if share < case.checks.ngram_min_distinct:
            return (
                f"of the last {case.checks.ngram_window} ids of the {name} only {share:.0%} of "
                f"the {case.checks.ngram}-grams are different"
            )
    return None


def _varied(ids: list[int], checks: Checks) -> bool:
    """Whether the tail has n-grams enough that differ in their first id: then there are no fewer.

    So nearly every text is told from a loop, for a tenth of the time.
    """
    if len(ids) < checks.ngram_window:
        return True
    firsts = ids[-checks.ngram_window : 1 - checks.ngram or None]
    return len(set(firsts)) >= checks.ngram_min_distinct * len(firsts)


def distinct_share(ids: list[int], checks: Checks) -> float:
    """How many of the n-grams in the last `ngram_window` ids are different, 1 for a short text.

    It finds the loops that `loop_period` does not: those that change a little each time.
    """
    if len(ids) < checks.ngram_window:
        return 1.0
    tail, size = ids[-checks.ngram_window :], checks.ngram
    # The tail beside itself, shifted: without a step of Python's own for every gram.
    grams = set(zip(*(tail[n:] for n in range(size)), strict=False))
    return len(grams) / (len(tail) - size + 1)


def loop_period(ids: list[int], checks: Checks) -> int:
    """The shortest period in which the tail of `ids` repeats, 0 for none.

    The tail is `loop_window` ids or `loop_min_repeats` periods, whichever is longer.
    """
    before = ids[-1 - checks.loop_max_period : -1]
    before.reverse()
    # Most texts are told from a loop by one id: only where the last one stood before can one be.
    for period in [n for n, token in enumerate(before, 1) if token == ids[-1]]:
        width = max(checks.loop_window, period * checks.loop_min_repeats)
        if width > len(ids):
            continue
        tail = ids[-width:]
        if tail[period:] == tail[:-period]:
            return period
    return 0


def _repeats(ids: list[int], period: int) -> int:
    """How often the last `period` ids stand at the end of `ids`, one behind the other."""
    place = len(ids) - period - 1
    while place >= 0 and ids[place] == ids[place + period]:
        place -= 1
    return (len(ids) - place - 1) // period


def _bad_markup(case: Case) -> str | None:
    markers, body = case.markers, case.body
    if not markers.template_ids.isdisjoint(case.distinct):
        strays = [token for token in body if token in markers.template_ids]
        return f"{len(strays)} template tokens in the output, the first is {strays[0]}"
    opens, closes = (
        body.count(marker) if marker in case.distinct else 0
        for marker in (markers.think_open, markers.think_close)
    )
    if closes > (1 if case.thinks else 0):
        return f"{closes} </think>, thinking {'asked for' if case.thinks else 'not asked for'}"
    may_open = case.thinks and not _opened(case.generation.prompt_ids, markers)
    if opens and not (may_open and opens == 1 and body[0] == markers.think_open):
        return f"{opens} <think>, which {'may only come first' if may_open else 'may not come'}"
    return None


def _opened(prompt: list[int], markers: Markers) -> bool:
    """True when the prompt ends inside an open `<think>`, as the template of Qwen3.6 does."""
    # Only the opening of the turn counts: the user may have written `<think>` as well.
    for token in reversed(prompt[-OPENING:]):
        if token in (markers.think_open, markers.think_close):
            return token == markers.think_open
    return False


def _no_answer(case: Case) -> str | None:
    if case.thinks and case.boundary is None:
        return f"thinking never closed in {len(case.body)} ids"
    if case.spoken(1) == 0:
        return f"{len(case.answer)} ids of answer, all whitespace, after {len(case.thought)} ids"
    return None


def _stub(case: Case) -> str | None:
    wanted = case.checks.min_answer_tokens
    if (got := case.spoken(wanted)) < wanted:
        return f"{got} ids of answer, at least {wanted} wanted"
    return None


# In this order: what says most about the cause comes first, and a truncated generation is one
# whose prefix is good.
_RULES: tuple[tuple[str, Callable[[Case], str | None]], ...] = (
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
