"""When a run stops itself: the verdict on its canary, and the rejections of a worker after it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from dflashq.core.model import Guard

EXAMPLES = 3


@dataclass(frozen=True, slots=True)
class JudgedPrompt:
    """What the guard needs of a settled prompt; `tokens` counts the generated ones.

    `key` names the prompt for a person; `reason` is None when it was accepted.
    """

    key: str
    reason: str | None
    tokens: int


def reasons_in_words(judged: Iterable[JudgedPrompt]) -> str:
    """`truncated 12, no_answer 3`, most frequent first."""
    counts = Counter(prompt.reason for prompt in judged if prompt.reason is not None)
    return ", ".join(f"{reason} {count}" for reason, count in counts.most_common())


def _examples(judged: Iterable[JudgedPrompt]) -> str:
    rejected = [f"{prompt.key} ({prompt.reason})" for prompt in judged if prompt.reason is not None]
    return "; ".join(rejected[:EXAMPLES])


def _share(judged: list[JudgedPrompt]) -> float:
    return sum(prompt.reason is not None for prompt in judged) / len(judged)


def canary_objection(judged: list[JudgedPrompt], guard: Guard, tolerated: float = 0.0) -> str:
    """Why the canary must not pass, as a sentence; empty when it passes.

    `tolerated` is the share of rejections that a person has accepted for this run.
    """
    share, limit = _share(judged), max(guard.max_rejected, tolerated)
    if share > limit:
        return (
            f"the canary: {share:.0%} of its {len(judged)} prompts were rejected, at most "
            f"{limit:.0%} may be ({reasons_in_words(judged)}); for example {_examples(judged)}"
        )
    lengths = [prompt.tokens for prompt in judged if prompt.reason is None]
    middle = median(lengths) if lengths else 0
    if middle < guard.min_median_tokens:
        return (
            f"the canary: the median answer has {middle:g} tokens, at least "
            f"{guard.min_median_tokens} are expected: look at "
            + ", ".join(prompt.key for prompt in judged[:EXAMPLES])
        )
    return ""


class RejectionWindow:
    """The rejections among the last prompts that a worker settled in one run. Not thread-safe."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._last: deque[JudgedPrompt] = deque()
        self._rejected = 0  # how many of `_last`

    def objection(self, judged: JudgedPrompt, tolerated: float) -> str:
        """Add a prompt; a sentence when too many of the last prompts were rejected, else empty.

        An objection empties the window, so that a resumed run is judged anew.
        """
        self._take(judged)
        limit = max(self._guard.max_rejected, tolerated)
        full = len(self._last) == self._guard.window
        # A window that is not full yet is judged by what would be too many in a full one.
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
    """The sentence on a run whose canary is dead: why it waits, and how it goes on."""
    return _stands_still(
        run,
        f"its canary ({canary}) is dead: {reason}",
        "tries the canary again",
        f"goes on without it (`dflashq backfill {run}` can revive it later)",
    )


def lost_canary(run: str, canary: str) -> str:
    """The sentence on a run whose canary the ledger does not know any more."""
    return _stands_still(
        run,
        f"its canary ({canary}) is lost: the ledger has it in no state",
        "adds it again",
        "adds it as a batch that nobody waits for",
    )


def unreadable_canary(run: str, canary: str, reason: str) -> str:
    """The sentence on a run whose canary is done and cannot be judged from what S3 holds."""
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
