"""The workers as they last announced themselves. Pure functions, without a clock or a server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# Seconds without an announcement after which a worker counts as silent. They announce every few.
SILENT_S = 30


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One worker as it last announced itself, `silent_s` seconds ago.

    `batches` are those that it holds, as run/batch. `queue` is the one that it serves. `boot`
    identifies this start of the worker. `sick` says why its engine answers with errors only; it is
    empty while the engine is well. `refuses` names the runs that its engine may not answer for.
    `closed` says why its gate is closed, then why it refuses each of those runs.
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
        """Announced within `SILENT_S`: only such a worker counts for speed and estimates."""
        return self.silent_s <= SILENT_S

    @property
    def gate_closed(self) -> list[str]:
        """Why it takes no new prompt of any run; empty while it takes some."""
        return self.closed[: max(0, len(self.closed) - len(self.refuses))]

    def refusal(self, run: str) -> str:
        """Why it refuses a run; empty when it does not refuse it or gives no reason."""
        reasons = self.closed[len(self.gate_closed) :]
        return dict(zip(self.refuses, reasons, strict=False)).get(run, "")

    def serves(self, queue: str) -> bool:
        """Whether it may take batches of this queue; True for an old worker, which names none."""
        return self.queue in ("", queue)

    def works_on(self, run: str) -> bool:
        """Whether it holds a batch of this run."""
        return any(batch.rpartition("/")[0] == run for batch in self.batches)


def worker_views(workers: Mapping[str, Mapping[str, Any]]) -> list[WorkerView]:
    """The workers by name; `workers` maps each name to the row that it announced.

    Fields that an older worker does not announce are empty.
    """
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
