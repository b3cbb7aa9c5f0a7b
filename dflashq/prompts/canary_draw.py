"""The prompts of the canary: a few of every domain, drawn while the files are read."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]


class CanaryDraw:
    """Holds back up to `size` rows of each of the first `size` domains, and draws from those.

    Memory is bounded by `size`. Until `size` rows are held, every row is held, so the canary is
    full whenever there are enough rows.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._held: dict[str, list[tuple[int, Row]]] = {}
        self._count = 0

    @property
    def takes_a_batch(self) -> int:
        """How many batches the canary takes: 1, or 0 when there is none."""
        return 1 if self._size else 0

    def hold(self, row: Row) -> bool:
        """Hold the row back and return True, or return False: it goes to the ordinary batches."""
        domain = str(row.get("domain", ""))
        if domain not in self._held and len(self._held) >= self._size:
            return False
        rows = self._held.setdefault(domain, [])
        if len(rows) >= self._size:
            return False
        rows.append((self._count, row))
        self._count += 1
        return True

    def drawn(self) -> tuple[list[Row], list[Row]]:
        """(the rows of the canary, the other held rows), each in the order of the files.

        The domains take turns, so that each is in the canary however large the others are.
        """
        queues = [list(rows) for rows in self._held.values()]
        chosen: list[tuple[int, Row]] = []
        while len(chosen) < self._size and any(queues):
            for queue in queues:
                if queue and len(chosen) < self._size:
                    chosen.append(queue.pop(0))
        rest = sorted((pair for queue in queues for pair in queue), key=lambda pair: pair[0])
        chosen.sort(key=lambda pair: pair[0])
        return [row for _, row in chosen], [row for _, row in rest]
