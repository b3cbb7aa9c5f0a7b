"""The canary's prompts: a few of every domain, drawn while the files are read."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]


class CanaryDraw:
    """Holds back up to `size` rows of each of the first `size` domains; the rest is not its own.

    Constant memory. A row is passed on only when `size` rows are held, so the canary is never
    short while rows are left.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._held: dict[str, list[tuple[int, Row]]] = {}
        self._seen = 0

    @property
    def takes_a_batch(self) -> int:
        """1 when the canary will be the first batch, 0 when there is none."""
        return 1 if self._size else 0

    def hold(self, row: Row) -> bool:
        """True when the row is held back; False when it goes to the ordinary batches."""
        domain = str(row.get("domain", ""))
        if domain not in self._held and len(self._held) >= self._size:
            return False
        rows = self._held.setdefault(domain, [])
        if len(rows) >= self._size:
            return False
        rows.append((self._seen, row))
        self._seen += 1
        return True

    def drawn(self) -> tuple[list[Row], list[Row]]:
        """(the canary's rows, the held rows that are not drawn), each in the order of the files.

        The domains take turns, so that each has a part even when one outnumbers the others.
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
