"""What the emulated engine counted, for tests that must know how often a prompt was asked."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class Stats:
    """Counters of one process, and an append-only JSONL file that outlives it.

    Events: received, answered (HTTP 200, stop or length), aborted (HTTP 200, abort), refused
    (400), failed (a fault ate the answer), dropped (the client went away). A line is written
    before the response leaves, without a buffer, so kill -9 loses none.
    """

    def __init__(self, path: Path | None) -> None:
        self.totals: Counter[str] = Counter()
        self.received: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()
        self.keyed: Counter[str] = Counter()
        self.first_received: float | None = None
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._file = None if path is None else os.open(path, flags, 0o644)

    def note(self, event: str, rid: str, prompt: str, **more: Any) -> None:
        """Count one event of a request; `prompt` is the hash of its prompt ids."""
        self.totals[event] += 1
        if event == "received":
            self.received[prompt] += 1
            self.first_received = self.first_received or time.monotonic()
        elif event == "answered":
            self.answered[prompt] += 1
        if self._file is not None:
            row = {"event": event, "rid": rid, "prompt": prompt, "t": time.time(), **more}
            row["pid"] = os.getpid()
            os.write(self._file, json.dumps(row).encode() + b"\n")

    def prompts(self) -> dict[str, dict[str, int]]:
        """How often each prompt was received and answered, by hash."""
        return {
            key: {"received": count, "answered": self.answered[key]}
            for key, count in self.received.items()
        }


@dataclass(slots=True)
class Tally:
    """The stats file of one or more processes: events in all, and by prompt hash."""

    totals: Counter[str] = field(default_factory=Counter)
    received: Counter[str] = field(default_factory=Counter)
    answered: Counter[str] = field(default_factory=Counter)
    pids: set[int] = field(default_factory=set)


def read_stats(path: Path) -> Tally:
    """Count a stats file; a torn last line (kill -9 in the middle of it) is left out."""
    tally = Tally()
    for line in path.read_bytes().split(b"\n")[:-1]:
        row = json.loads(line)
        tally.totals[row["event"]] += 1
        tally.pids.add(row["pid"])
        if row["event"] in ("received", "answered"):
            getattr(tally, row["event"])[row["prompt"]] += 1
    return tally
