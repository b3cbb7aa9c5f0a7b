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

    `host_id` is the same for all containers of one running host and for no other host, whatever
    their host names. `started_ms` counts from that host's own start, so it orders the boots of one
    `host_id` only. `token` tells any two boots apart.
    """

    name: str
    host_id: str
    started_ms: int
    token: str

    @property
    def text(self) -> str:
        """`HOST_ID:STARTED_MS:TOKEN`, as it stands beside the name in the ledger, whose scripts
        read it."""
        return f"{self.host_id}:{self.started_ms}:{self.token}"

    @classmethod
    def parse(cls, name: str, text: str) -> Self | None:
        """The boot that was written as `text`; None for anything else, as workers without a boot
        announce."""
        read = _TEXT.fullmatch(text)
        if read is None:
            return None
        return cls(name, read["host"], int(read["started"]), read["token"])


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process of one host: `start_ticks` tells it from a later one of the same `pid`.

    `pid_namespace` is empty where it cannot be told.
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
        """The process that a row names; None where it does not say enough."""
        pid, namespace, start = (row.get(k) for k in ("pid", "pid_namespace", "pid_start"))
        if not isinstance(pid, int) or not isinstance(start, int) or not namespace or pid <= 0:
            return None
        return cls(pid, str(namespace), start)
