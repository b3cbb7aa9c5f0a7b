"""Shares of domains by supervised tokens: explicit quotas, filled in a seeded order."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field

Key = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Quota:
    """What a domain was to give, had and gave: `chosen` of `available`, in supervised tokens."""

    domain: str
    quota: int
    available: int
    chosen: int
    rows: int

    @property
    def short(self) -> int:
        """Tokens that the domain lacks for its quota; what no whole row could fill is no lack."""
        return max(0, self.quota - self.available)


@dataclass(slots=True)
class Candidates:
    """The rows of one domain: index, turn and supervised tokens of each, 24 bytes a row."""

    indexes: array[int] = field(default_factory=lambda: array("q"))
    turns: array[int] = field(default_factory=lambda: array("q"))
    tokens: array[int] = field(default_factory=lambda: array("q"))
    total: int = 0

    def add(self, key: Key, tokens: int) -> None:
        self.indexes.append(key[0])
        self.turns.append(key[1])
        self.tokens.append(tokens)
        self.total += tokens

    def seeded(self, seed: int) -> list[int]:
        """Positions in an order that depends on the seed and on each row's key alone."""
        return sorted(
            range(len(self.tokens)),
            key=lambda n: _rank(seed, (self.indexes[n], self.turns[n])),
        )


def _rank(seed: int, key: Key) -> bytes:
    return hashlib.blake2b(f"{seed}:{key[0]}:{key[1]}".encode(), digest_size=8).digest()


class Mix:
    """Collects every row once (`add`), then chooses (`choose`).

    `shares` maps a domain to its weight; they need not sum to anything. Memory: 24 bytes a row.
    """

    def __init__(self, shares: Mapping[str, float], seed: int) -> None:
        self._total = sum(shares.values())
        self._shares, self._seed = dict(shares), seed
        self._found = {domain: Candidates() for domain in shares}
        self.left_out: dict[str, int] = {}

    def add(self, domain: str, key: Key, tokens: int) -> None:
        """One row; rows of a domain without a share are counted in `left_out`."""
        if domain in self._found:
            self._found[domain].add(key, tokens)
        else:
            self.left_out[domain] = self.left_out.get(domain, 0) + 1

    def quotas(self, budget: int | None) -> dict[str, int]:
        """Supervised tokens by domain for a budget; None: the largest that no domain lacks."""
        if budget is None:
            budget = int(
                min(self._found[d].total * self._total / share for d, share in self._shares.items())
            )
        # Rounding may take a domain a token above what it has.
        return {d: int(budget * share / self._total) for d, share in self._shares.items()}

    def choose(self, budget: int | None) -> tuple[set[Key], list[Quota]]:
        """The chosen rows, and what became of each domain's quota.

        Rows are taken whole in the seeded order until the next one would pass the quota, so that
        short ones are not favoured. No row is taken twice.
        """
        chosen: set[Key] = set()
        told = []
        for domain, quota in self.quotas(budget).items():
            found = self._found[domain]
            taken = rows = 0
            for place in found.seeded(self._seed):
                if taken + found.tokens[place] > quota:
                    break
                taken += found.tokens[place]
                rows += 1
                chosen.add((found.indexes[place], found.turns[place]))
            told.append(Quota(domain, quota, found.total, taken, rows))
        return chosen, told

    @property
    def scarcest(self) -> str:
        """The domain that limits the others."""
        return min(self._shares, key=lambda d: self._found[d].total / self._shares[d])
