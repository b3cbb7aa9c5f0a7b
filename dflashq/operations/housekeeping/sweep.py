"""The sweep: expired leases go back, each stage gets what its upstream committed, and there are as
many hints as pending batches.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field

from dflashq.core.errors import LedgerError
from dflashq.core.json_logging import level_of
from dflashq.core.stage_spec import GENERATE, STAGES, StageSpec
from dflashq.ledger import Hints, Ledger
from dflashq.operations.runs.hinting import hint_pending, publish_hints

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SweepResult:
    """What one sweep did: batches taken back, batches that died, hints published."""

    expired: list[str] = field(default_factory=list)
    dead: list[str] = field(default_factory=list)
    hinted: int = 0


class Sweeper:
    """The sweep of one process, which any number of processes may run side by side.

    Nobody is expired before this process has seen a full lease time of a working ledger: after an
    outage every holder first gets its chance to renew.
    """

    def __init__(self, ledger: Ledger, hints: Hints, ttl_s: float) -> None:
        self._ledger, self._hints, self._ttl_s = ledger, hints, ttl_s
        self._connected_since: float | None = None

    def sweep(self, lock_s: float) -> SweepResult | None:
        """One sweep of every stage; None when another process sweeps or Redis is away."""
        try:
            if not self._ledger.sweep_lock(lock_s):
                self._seen()
                return None
            swept = self._sweep()
        except LedgerError as exc:
            self._connected_since = None
            log.log(level_of(exc), "sweep put off: %s", exc)
            return None
        self._seen()
        if swept.expired or swept.hinted:
            log.info(
                "swept: taken back=%s dead=%s hints=%d", swept.expired, swept.dead, swept.hinted
            )
        return swept

    def _seen(self) -> None:
        if self._connected_since is None:
            self._connected_since = time.monotonic()

    def _may_expire(self) -> bool:
        since = self._connected_since
        if since is None or time.monotonic() - since < self._ttl_s:
            return False
        # Another thread may have met an outage that came and went between two sweeps.
        return self._ledger.outage.served_s >= self._ttl_s

    def _sweep(self) -> SweepResult:
        stages = {spec: self._ledger.runs(spec.name) for spec in STAGES.values()}
        swept = SweepResult()
        may_expire = self._may_expire()
        for spec, runs in stages.items():
            for run, queue in sorted(runs.items()):
                self._ledger.add_ready(run, spec)
                if may_expire:
                    self._expire(spec, run, queue, swept)
        queues = {queue for runs in stages.values() for queue in runs.values()}
        hinted = sum(hint_pending(self._ledger, self._hints, queue) for queue in sorted(queues))
        return SweepResult(swept.expired, swept.dead, hinted)

    def _expire(self, spec: StageSpec, run: str, queue: str, swept: SweepResult) -> None:
        outcomes = self._ledger.expire(run, spec.name)
        where = f"{run}/" if spec is GENERATE else f"{run}/{spec.name}/"
        back = [batch for batch, outcome in outcomes if outcome == "pending"]
        swept.expired.extend(where + batch for batch in back)
        swept.dead.extend(where + batch for batch, outcome in outcomes if outcome == "dead")
        if back and self._ledger.state(run, spec.name) == "active":
            # Recovered work overtakes what nobody has begun.
            publish_hints(self._hints, queue, run, back, spec=spec, urgent=True)
