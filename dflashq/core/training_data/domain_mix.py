"""Quotas of domains by supervised tokens, filled in an order that a seed decides."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field

Key = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Quota:
    """A domain's quota, what it has (`available`) and gave (`chosen`), in supervised tokens."""

    domain: str
    quota: int
    available: int
    chosen: int
    rows: int

    @property
    def short(self) -> int:
        """Tokens that the domain lacks for its quota. A rest too small for a row does not count."""
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
        """The positions of the rows, in an order that only the seed and the rows' keys decide."""
        return sorted(
            range(len(self.tokens)),
            key=lambda n: _rank(seed, (self.indexes[n], self.turns[n])),
        )


def _rank(seed: int, key: Key) -> bytes:
    return hashlib.blake2b(f"{seed}:{key[0]}:{key[1]}".encode(), digest_size=8).digest()


class Mix:
    """Chooses rows by domain: `add` every row once, then `choose`.

    `shares` maps domains to weights of any sum. Memory: 24 bytes a row.
    """

    def __init__(self, shares: Mapping[str, float], seed: int) -> None:
        self._total = sum(shares.values())
        self._shares, self._seed = dict(shares), seed
        self._candidates = {domain: Candidates() for domain in shares}
        self.left_out: dict[str, int] = {}

    def add(self, domain: str, key: Key, tokens: int) -> None:
        """One row; rows of a domain without a share are counted in `left_out`."""
        if domain in self._candidates:
            self._candidates[domain].add(key, tokens)
        else:
            self.left_out[domain] = self.left_out.get(domain, 0) + 1

    def quotas(self, budget: int | None) -> dict[str, int]:
        """Supervised tokens by domain. Without a budget: the largest that every domain can meet."""
        if budget is None:
            budget = int(
                min(
                    self._candidates[domain].total * self._total / share
                    for domain, share in self._shares.items()
                )
            )
        # Rounding down keeps a domain from a quota that is a token above what it has.
        return {domain: int(budget * share / self._total) for domain, share in self._shares.items()}

    def choose(self, budget: int | None) -> tuple[set[Key], list[Quota]]:
        """The keys of the chosen rows, and the quota of each domain with what it gave.

        Whole rows are taken in the seeded order until the next one would exceed the quota, so that
        short rows are not favoured. No row is taken twice.
        """
        chosen: set[Key] = set()
        quotas = []
        for domain, quota in self.quotas(budget).items():
            candidates = self._candidates[domain]
            tokens = rows = 0
            for position in candidates.seeded(self._seed):
                if tokens + candidates.tokens[position] > quota:
                    break
                tokens += candidates.tokens[position]
                rows += 1
                chosen.add((candidates.indexes[position], candidates.turns[position]))
            quotas.append(Quota(domain, quota, candidates.total, tokens, rows))
        return chosen, quotas

    @property
    def scarcest(self) -> str:
        """The domain with the fewest tokens for its share, which limits the others."""
        return min(
            self._shares,
            key=lambda domain: self._candidates[domain].total / self._shares[domain],
        )
