"""The list of workers: under each name what one boot of it announced, and when."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import Any

from dflashq.core import keys
from dflashq.ledger import scripts


class WorkerRegistry(ABC):
    """The ledger's verbs on the names of workers; each blocks on Redis and is safe to repeat."""

    _redis: Any
    _lease_ms: int

    def announce(self, worker: str, row: dict[str, Any], *, gone: str = "") -> bool:
        """Take the name `worker` for the boot that `row` names, and say how that boot fares.

        False: another boot has the name and was heard of within the lease time; its row stands.
        `gone` is a boot that is known to have ended: its name is free at once.
        """
        row = {**row, "boot": str(row.get("boot", ""))}
        row.pop("seen_ms", None)
        asked = (row["boot"], self._lease_ms, json.dumps(row), gone)
        return bool(self._call_on(scripts.WORKER_KEYS, "announce", worker, *asked))

    def renew_name(self, worker: str, boot: str) -> bool:
        """Say that a boot lives, its row as it was; False when another boot has its name."""
        asked = (boot, self._lease_ms, "", "")
        return bool(self._call_on(scripts.WORKER_KEYS, "announce", worker, *asked))

    def retire(self, worker: str, boot: str = "") -> bool:
        """Take a boot that ended in order off the list; False when it is not on it."""
        return bool(self._call_on(scripts.WORKER_KEYS, "retire", worker, boot))

    def worker(self, worker: str) -> dict[str, Any] | None:
        """What a worker last announced, and when (`seen_ms`); None when it is not on the list."""
        with self._translated(f"reading the row of worker {worker}"):
            row = self._redis.hget(keys.WORKERS, worker)
        return None if row is None else dict(json.loads(row))

    def workers(self) -> dict[str, dict[str, Any]]:
        """What each worker last announced; `silent_s` is its age."""
        with self._translated("listing the workers"):
            rows = self._redis.hgetall(keys.WORKERS)
        now = self._time()[0]
        known = {name.decode(): json.loads(row) for name, row in rows.items()}
        return {n: {**r, "silent_s": max(0, now - r["seen_ms"] // 1000)} for n, r in known.items()}

    @abstractmethod
    def _call_on(self, keyset: tuple[str, ...], name: str, about: str, *args: Any) -> Any: ...

    @abstractmethod
    def _time(self) -> tuple[int, int]: ...

    @abstractmethod
    def _translated(self, doing: str) -> Any: ...
