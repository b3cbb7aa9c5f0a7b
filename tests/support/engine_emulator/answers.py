"""The answers of the emulated engine: their ids follow from the prompt ids and a seed alone."""

from __future__ import annotations

import hashlib
import math
import random
from array import array
from dataclasses import dataclass
from typing import Any

PLAIN_TAIL = 8  # a prompt with `</think>` among its last ids asks for an answer without thinking


def prompt_hash(ids: list[int]) -> str:
    """16 hex digits that name a prompt in `/stats`, in the stats file and in faults."""
    return hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()[:16]


def unit(*parts: object) -> float:
    """A number in [0, 1) that follows from `parts`."""
    digest = hashlib.sha256("|".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:7], "big") / 2**56


@dataclass(frozen=True, slots=True)
class LengthDistribution:
    """How many ids an answer has, its end included; at least 3.

    `fixed:N`, `uniform:A:B` (both included), `pareto:low=L,alpha=A,cap=C` (bounded at C), or
    `lognormal:mean=M,sigma=S,cap=C`, where M is the mean before the cap.
    """

    kind: str
    low: float
    high: float
    cap: int

    @classmethod
    def parse(cls, text: str) -> LengthDistribution:
        """ValueError when `text` is none of the four forms."""
        kind, _, rest = text.partition(":")
        if kind == "fixed":
            return cls(kind, int(rest), int(rest), int(rest))
        if kind == "uniform":
            low, high = map(int, rest.split(":"))
            return cls(kind, low, high, high)
        if kind == "lognormal":
            named = dict(part.split("=", 1) for part in rest.split(","))
            return cls(kind, float(named["mean"]), float(named["sigma"]), int(named["cap"]))
        if kind == "pareto":
            named = dict(part.split("=", 1) for part in rest.split(","))
            return cls(kind, float(named["low"]), float(named["alpha"]), int(named["cap"]))
        raise ValueError(f"{text!r} is no length distribution")

    def draw(self, key: str) -> int:
        rng = random.Random(key)
        if self.kind == "lognormal":
            mu = math.log(self.low) - self.high**2 / 2
            count = round(rng.lognormvariate(mu, self.high))
        elif self.kind == "pareto":
            beyond = (self.low / self.cap) ** self.high
            count = round(self.low * (1 - rng.random() * (1 - beyond)) ** (-1 / self.high))
        else:
            count = rng.randint(int(self.low), int(self.high))
        return max(3, min(count, self.cap))


@dataclass(frozen=True, slots=True)
class Answer:
    """All ids an answer will have, and the finish reason it then reports."""

    ids: list[int]
    finish: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Voice:
    """The stand-in for a model: `low`..`high` (excluded) are its ordinary ids."""

    lengths: LengthDistribution
    low: int
    high: int
    end_id: int
    think_close: int | None
    vocab_size: int
    seed: int

    def answer(self, prompt: list[int], max_new_tokens: int, fault: str = "") -> Answer:
        """The answer to `prompt`; `fault` names one of `faults.CONTENT` or is empty."""
        key = f"{self.seed}|{prompt_hash(prompt)}"
        natural = self._natural(key, self.lengths.draw(key), prompt)
        if fault:
            return self._faulty(fault, key, natural, max_new_tokens)
        return self._cut(natural, max_new_tokens)

    def _natural(self, key: str, count: int, prompt: list[int]) -> list[int]:
        ids = self._ordinary(key, count - 1)
        if self.think_close is not None and self.think_close not in prompt[-PLAIN_TAIL:]:
            ids[max(1, (count - 1) * 7 // 10) - 1] = self.think_close
        return [*ids, self.end_id]

    def _ordinary(self, key: str, count: int) -> list[int]:
        words = array("I", hashlib.shake_256(key.encode()).digest(4 * count))
        span = self.high - self.low
        return [self.low + word % span for word in words]

    def _cut(self, ids: list[int], limit: int) -> Answer:
        # The real engine looks at the length first: an end id at exactly the limit is "length".
        if len(ids) >= limit:
            return Answer(ids[:limit], {"type": "length", "length": limit})
        return Answer(ids, {"type": "stop", "matched": ids[-1]})

    def _faulty(self, fault: str, key: str, natural: list[int], limit: int) -> Answer:
        close = [] if self.think_close is None else [self.think_close]
        half = natural[: max(1, len(natural) // 2)]
        stop = {"type": "stop", "matched": self.end_id}
        if fault == "nan":
            return Answer([*half, self.end_id], {"type": "stop", "matched": "NaN happened"})
        if fault == "clamped":
            return Answer(half, {"type": "length", "length": len(half)})
        if fault == "truncated":
            return Answer(self._ordinary(key, limit), {"type": "length", "length": limit})
        if fault == "corrupt_end":
            return Answer([*natural[:-1], self.low], stop)
        if fault == "endless":
            return self._cut([*half, *self._ordinary(key, 7) * (1 + limit // 7)], limit)
        loop = self._ordinary(key, 5) * 200
        spoken = {
            "stub": close,
            "empty": [],
            "no_answer": [i for i in natural[:-1] if i != self.think_close] if close else [],
            "looping": [*half, *([] if set(close) & set(half) else close), *loop],
            "corrupt_vocab": [*natural[:-2], self.vocab_size + 7],
            "bad_markup": [*natural[:-2], *close, *close, natural[-2]],
        }[fault]
        return self._cut([*spoken, self.end_id], limit)
