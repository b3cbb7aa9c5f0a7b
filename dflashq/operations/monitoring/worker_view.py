"""The workers as they last announced themselves. Pure; nothing here reads a clock or a server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SILENT_S = 30


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One worker as it last announced itself; `batches` as run/batch, `silent_s` since then.

    `queue` is the one that it serves, `boot` tells this start of it from any other, `sick` says why
    its engine answers with errors only (empty while it is well), `refuses` names the runs that its
    engine may not answer for.
    """

    name: str
    engine: str
    profile: str
    gpu: str
    in_flight: int
    limit: int
    tokens_per_s: float
    output_tokens: int
    silent_s: int
    closed: list[str] = field(default_factory=list)
    batches: list[str] = field(default_factory=list)
    queue: str = ""
    boot: str = ""
    sick: str = ""
    refuses: list[str] = field(default_factory=list)

    @property
    def alive(self) -> bool:
        """Heard of lately: only such a worker counts for speed and estimates."""
        return self.silent_s <= SILENT_S

    @property
    def gate_closed(self) -> list[str]:
        """Why its gate is closed: `closed` without the refusals of single runs, which come last."""
        return self.closed[: max(0, len(self.closed) - len(self.refuses))]

    def refusal(self, run: str) -> str:
        """Why it refuses a run; empty when it does not, or does not say."""
        reasons = self.closed[len(self.gate_closed) :]
        return dict(zip(self.refuses, reasons, strict=False)).get(run, "")

    def serves(self, queue: str) -> bool:
        """Whether it may take batches of this queue; an older worker does not say which is its."""
        return self.queue in ("", queue)

    def works_on(self, run: str) -> bool:
        """Whether it holds a batch of this run."""
        return any(batch.rpartition("/")[0] == run for batch in self.batches)


def worker_views(workers: Mapping[str, Mapping[str, Any]]) -> list[WorkerView]:
    """The workers by name; fields that an older worker does not announce are empty."""
    return [
        WorkerView(
            name=name,
            engine=str(row.get("engine", "?")),
            profile=str(row.get("profile", "")),
            gpu=str(row.get("gpu", "")),
            in_flight=int(row.get("in_flight", 0)),
            limit=int(row.get("limit", 0)),
            tokens_per_s=float(row.get("tokens_per_s", 0.0)),
            output_tokens=int(row.get("output_tokens", 0)),
            silent_s=int(row["silent_s"]),
            closed=list(row.get("closed", ())),
            batches=list(row.get("batches", ())),
            queue=str(row.get("queue", "")),
            boot=str(row.get("boot", "")),
            sick=str(row.get("sick", "")),
            refuses=list(row.get("refuses", ())),
        )
        for name, row in sorted(workers.items())
    ]
