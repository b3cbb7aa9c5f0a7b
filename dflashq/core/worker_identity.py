"""Who a worker is: its name and this start of it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

_TEXT = re.compile(r"(?P<host>[^:]+):(?P<started>\d+):(?P<token>[^:]+)")


@dataclass(frozen=True, slots=True)
class WorkerBoot:
    """One start of the worker `name`.

    `host_id` is the same in all containers of one running host and differs between hosts, whatever
    their names. `started_ms` counts from the start of that host, so it orders the boots of one
    `host_id` only. `token` differs between any two boots.
    """

    name: str
    host_id: str
    started_ms: int
    token: str

    @property
    def text(self) -> str:
        """`HOST_ID:STARTED_MS:TOKEN`, the spelling in the ledger, whose scripts parse it."""
        return f"{self.host_id}:{self.started_ms}:{self.token}"

    @classmethod
    def parse(cls, name: str, text: str) -> Self | None:
        """The boot that `text` spells; None for another text, as from a worker without a boot."""
        match = _TEXT.fullmatch(text)
        if match is None:
            return None
        return cls(name, match["host"], int(match["started"]), match["token"])


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process of one host; `start_ticks` differs from that of a later one with its `pid`.

    `pid_namespace` is empty where it is not known.
    """

    pid: int
    pid_namespace: str
    start_ticks: int

    def row(self) -> dict[str, Any]:
        """Its fields in a worker's announcement."""
        return {
            "pid": self.pid,
            "pid_namespace": self.pid_namespace,
            "pid_start": self.start_ticks,
        }

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self | None:
        """The process that an announcement names; None where a field is missing or wrong."""
        pid, namespace, start = (row.get(k) for k in ("pid", "pid_namespace", "pid_start"))
        if not isinstance(pid, int) or not isinstance(start, int) or not namespace or pid <= 0:
            return None
        return cls(pid, str(namespace), start)
