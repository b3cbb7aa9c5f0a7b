"""When a run stops itself: the canary's judgement, and the window of the prompts after it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from dflashq.core.model import Guard

EXAMPLES = 3


@dataclass(frozen=True, slots=True)
class JudgedPrompt:
    """One prompt with its verdict: what the guard needs of it. `tokens` are the generated ones."""

    key: str
    reason: str | None
    tokens: int


def reasons_in_words(judged: Iterable[JudgedPrompt]) -> str:
    """`truncated 12, no_answer 3`, most frequent first."""
    counts = Counter(one.reason for one in judged if one.reason is not None)
    return ", ".join(f"{reason} {count}" for reason, count in counts.most_common())


def _examples(judged: Iterable[JudgedPrompt]) -> str:
    rejected = [f"{one.key} ({one.reason})" for one in judged if one.reason is not None]
    return "; ".join(rejected[:EXAMPLES])


def _share(judged: list[JudgedPrompt]) -> float:
    return sum(one.reason is not None for one in judged) / len(judged)


def canary_objection(judged: list[JudgedPrompt], guard: Guard, tolerated: float = 0.0) -> str:
    """Why the canary must not pass, in a sentence; empty when it passes.

    `tolerated` is a share of rejections that a person has accepted.
    """
    share, limit = _share(judged), max(guard.max_rejected, tolerated)
    if share > limit:
        return (
            f"the canary: {share:.0%} of its {len(judged)} prompts were rejected, at most "
            f"{limit:.0%} may be ({reasons_in_words(judged)}); for example {_examples(judged)}"
        )
    lengths = [one.tokens for one in judged if one.reason is None]
    middle = median(lengths) if lengths else 0
    if middle < guard.min_median_tokens:
        return (
            f"the canary: the median answer has {middle:g} tokens, at least "
            f"{guard.min_median_tokens} are expected: look at "
            + ", ".join(one.key for one in judged[:EXAMPLES])
        )
    return ""


class RejectionWindow:
    """The last prompts that a worker settled in one run. Not safe from several threads."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._last: deque[JudgedPrompt] = deque()
        self._rejected = 0  # of those

    def objection(self, judged: JudgedPrompt, tolerated: float) -> str:
        """Take in one prompt; a sentence when too many of the last ones were rejected.

        The window is emptied by an objection, so that a resumed run is judged anew.
        """
        self._take(judged)
        limit = max(self._guard.max_rejected, tolerated)
        full = len(self._last) == self._guard.window
        # Before the window is full, only as many rejections as would be too many in a full one.
        if self._rejected <= limit * self._guard.window or not (full or judged.reason):
            return ""
        share = self._rejected / len(self._last)
        sentence = (
            f"{share:.0%} of the last {len(self._last)} prompts were rejected, at most "
            f"{limit:.0%} of {self._guard.window} may be ({reasons_in_words(self._last)}); for "
            f"example {_examples(list(self._last)[::-1])}"
        )
        self._last.clear()
        self._rejected = 0
        return sentence

    def _take(self, judged: JudgedPrompt) -> None:
        if len(self._last) == self._guard.window:
            self._rejected -= self._last.popleft().reason is not None
        self._last.append(judged)
        self._rejected += judged.reason is not None


def dead_canary(run: str, canary: str, reason: str) -> str:
    """Why a run stands still behind a canary whose attempts are spent, and how it goes on."""
    return _stands_still(
        run,
        f"its canary ({canary}) is dead: {reason}",
        "tries the canary again",
        f"goes on without it (`dflashq backfill {run}` can revive it later)",
    )


def lost_canary(run: str, canary: str) -> str:
    """The same for a canary that the ledger does not know any more."""
    return _stands_still(
        run,
        f"its canary ({canary}) is lost: the ledger has it in no state",
        "adds it again",
        "adds it as a batch that nobody waits for",
    )


def unreadable_canary(run: str, canary: str, reason: str) -> str:
    """The same for a canary that is done and cannot be judged from what S3 holds."""
    return _stands_still(
        run,
        f"its canary ({canary}) is done and cannot be judged: {reason}",
        f"judges it again, once its object is mended (`dflashq verify {run}` names what is wrong; "
        f"`dflashq reconcile {run}` has a lost object made anew)",
        "goes on without a judgement",
    )


def _stands_still(run: str, why: str, resumed: str, accepted: str) -> str:
    return (
        f"{why}. Nothing else of the run is begun. What to do: `dflashq resume {run}` {resumed}; "
        f"`dflashq resume {run} --accept` {accepted}; or `dflashq cancel {run}`"
    )
