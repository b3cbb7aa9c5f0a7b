"""What the monitor remembers in Redis: numbers over time, events, what it saw last. Bounded.

It is for people only: the verbs of the ledger never read it, and a lost one costs a chart.
"""

from __future__ import annotations

import json
import secrets
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dflashq.config import Settings
from dflashq.core import keys
from dflashq.ledger.connection import address, connect, translated
from dflashq.ledger.refusal import Need

Row = dict[str, Any]
EVENTS_KEPT = 1000
FLEET = ""


@dataclass(frozen=True, slots=True)
class Resolution:
    """A series of at most `kept` points, `every_s` apart."""

    name: str
    every_s: float
    kept: int


FINE = Resolution("fine", 10.0, 720)
COARSE = Resolution("coarse", 600.0, 4320)
RESOLUTIONS = (FINE, COARSE)


class MonitorStore:
    """One client, safe from many threads; blocks on Redis, LedgerUnreachableError when it is away.

    Any number of monitors may run: the one that holds the lead writes. Where an event belongs to
    no run, the run is FLEET.
    """

    def __init__(self, settings: Settings) -> None:
        self._redis = connect(settings)
        self._address = address(settings)
        self._me = secrets.token_hex(8)

    def lead(self, hold_s: float) -> bool:
        """Whether this instance writes for the next `hold_s`; taken, or held and prolonged."""
        with self._translated("taking the monitor's lead", Need.ROOM):
            if self._redis.set(keys.MONITOR_LEAD, self._me, nx=True, px=int(hold_s * 1000)):
                return True
            if self._redis.get(keys.MONITOR_LEAD) != self._me.encode():
                return False
            return bool(self._redis.pexpire(keys.MONITOR_LEAD, int(hold_s * 1000)))

    def give_up_lead(self) -> None:
        """Let another monitor lead at once."""
        with self._translated("giving up the monitor's lead"):
            if self._redis.get(keys.MONITOR_LEAD) == self._me.encode():
                self._redis.delete(keys.MONITOR_LEAD)

    def add_point(
        self, run: str, point: Row, coarse: Row | None = None, *, last: bool = False
    ) -> None:
        """One more point (`at`: server ms) of every resolution whose time has come.

        `coarse` has what is another number over ten minutes than over ten seconds. The `last`
        point of a run is noted whenever it comes.
        """
        lines = {FINE: point, COARSE: point | (coarse or {})}
        with self._translated(f"noting the numbers of run {run}"):
            pipe = self._redis.pipeline(transaction=False)
            for resolution in RESOLUTIONS:
                name = _series(run, resolution)
                newest = self._redis.lindex(name, 0)
                # A little early is on time, or a jittering clock would skip every second point.
                waited = point["at"] - (json.loads(newest)["at"] if newest else 0)
                if last or waited >= resolution.every_s * 900:
                    pipe.lpush(name, json.dumps(lines[resolution], separators=(",", ":")))
                    pipe.ltrim(name, 0, resolution.kept - 1)
            pipe.execute()

    def points(self, run: str, resolution: Resolution) -> list[Row]:
        """The series, oldest first."""
        with self._translated(f"reading the series of run {run}"):
            rows = self._redis.lrange(_series(run, resolution), 0, -1)
        return [json.loads(row) for row in reversed(rows)]

    def append_events(self, run: str, events: Sequence[Row]) -> None:
        """Append events (`at`: server ms, `kind`, `text`, `who`?), oldest first."""
        if not events:
            return
        lines = [json.dumps(event, ensure_ascii=False) for event in events]
        with self._translated("writing to the event feed"):
            pipe = self._redis.pipeline(transaction=False)
            pipe.lpush(_events(run), *lines)
            pipe.ltrim(_events(run), 0, EVENTS_KEPT - 1)
            pipe.execute()

    def events(self, run: str, limit: int = EVENTS_KEPT) -> list[Row]:
        """The feed, newest first."""
        with self._translated("reading the event feed"):
            rows = self._redis.lrange(_events(run), 0, limit - 1)
        return [json.loads(row) for row in rows]

    def save_snapshot(self, run: str, snapshot: Row) -> None:
        """What the feed leads up to, so that another monitor appends only what changed since."""
        packed = zlib.compress(json.dumps(snapshot, separators=(",", ":")).encode(), 1)
        with self._translated("noting what was seen"):
            self._redis.set(_part(run, "seen", keys.MONITOR_FLEET), packed)

    def load_snapshot(self, run: str) -> Row | None:
        """The snapshot that was saved last; None when there is none."""
        with self._translated("reading what was seen"):
            packed = self._redis.get(_part(run, "seen", keys.MONITOR_FLEET))
        return None if packed is None else json.loads(zlib.decompress(packed))

    def save_domains(self, run: str, row: Row) -> None:
        """The domains as they were counted last."""
        with self._translated(f"noting the domains of run {run}"):
            self._redis.set(_part(run, "domains", ""), json.dumps(row, ensure_ascii=False))

    def domains(self, run: str) -> Row | None:
        """The domains that were saved last; None when there are none."""
        with self._translated(f"reading the domains of run {run}"):
            row = self._redis.get(_part(run, "domains", ""))
        return None if row is None else json.loads(row)

    def counts(self, run: str, batches: Iterable[str]) -> dict[str, dict[str, int]]:
        """What each of these done batches counts; one that is not done is left out."""
        names = list(batches)
        if not names:
            return {}
        with self._translated(f"reading the done-set of {run}"):
            rows = self._redis.hmget(keys.redis_run(run, "done"), names)
        return {
            name: json.loads(row)["counts"]
            for name, row in zip(names, rows, strict=True)
            if row is not None
        }

    def _translated(self, doing: str, need: Need = Need.ANSWER) -> Any:
        return translated(self._address, doing, need)


def _series(run: str, resolution: Resolution) -> str:
    return keys.redis_run(run, f"monitor:{resolution.name}")


def _events(run: str) -> str:
    return _part(run, "events", keys.MONITOR_EVENTS)


def _part(run: str, part: str, of_the_fleet: str) -> str:
    return keys.redis_run(run, f"monitor:{part}") if run else of_the_fleet
