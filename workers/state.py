"""How a worker fares at one moment: what it announces to the ledger and shows on `/metrics`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A snapshot of one worker; whoever reads it needs nothing of the worker itself.

    `batches` are (run, batch) at work. `sick_since_ms` is in the ledger's time, None while the
    engine is well. `refused` are runs that this engine must not answer for, with the reason.
    `engine_url` is "" while no engine is ready. `engine_stats` is what the engine told last.
    """

    name: str
    gpu: str
    profile: str
    queue: str
    engine: str
    engine_url: str
    engine_restarts: int
    sick: str
    sick_since_ms: int | None
    last_error: str
    refused: Mapping[str, str]
    output_tokens: int
    in_flight: int
    limit: int
    waiting: int
    gate_reasons: tuple[str, ...]
    keep_full: bool
    hints_taken: int
    batches: tuple[tuple[str, str], ...]
    heartbeat_age_s: float
    engine_stats: Mapping[str, Any] = field(default_factory=dict)

    def announcement(self, tokens_per_s: float) -> dict[str, Any]:
        """The row under the worker's name in the ledger; its keys are read by other versions."""
        return {
            "gpu": self.gpu,
            "profile": self.profile,
            "queue": self.queue,
            "sick": self.sick,
            "sick_since": self.sick_since_ms,
            "refuses": list(self.refused),
            "engine": self.engine,
            "restarts": self.engine_restarts,
            "last_error": self.last_error,
            "output_tokens": self.output_tokens,
            "tokens_per_s": tokens_per_s,
            "in_flight": self.in_flight,
            "limit": self.limit,
            "waiting": self.waiting,
            "gate_closed": bool(self.gate_reasons),
            "closed": [*self.gate_reasons, *self.refused.values()],
            "batches": [f"{run}/{batch}" for run, batch in self.batches],
            **self.engine_stats,
        }
