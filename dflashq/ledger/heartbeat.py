"""The heartbeat: one thread renews all leases of a worker and tells who lost what."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from dflashq.core.errors import LedgerError
from dflashq.core.json_logging import level_of
from dflashq.ledger.ledger import Ledger
from dflashq.ledger.models import Lease
from dflashq.system.threads import SupervisedThread, report

log = logging.getLogger(__name__)

Lost = Callable[[str], None]


class LeaseHeartbeat:
    """Renews every lease at ttl/3 and looks at the state of its run every second.

    `hold` registers a lease with a callback that is called once, from the heartbeat's thread, with
    `fenced`, `paused`, `cancelled` or `unknown` (the ledger forgot the run). An outage of Redis
    loses nothing by itself: the fence decides once Redis is back.

    `renew_name` is called as often as leases are renewed: a worker's name is held like a lease,
    and whatever else keeps the worker busy must not make it look dead.
    """

    def __init__(
        self, ledger: Ledger, ttl_s: float, renew_name: Callable[[], object] | None = None
    ) -> None:
        self._ledger, self._ttl_s, self._renew_name = ledger, ttl_s, renew_name
        self._held: dict[Lease, Lost] = {}
        self._renewed: dict[Lease, float] = {}
        self._lock = threading.Lock()
        # A renewal is a write, which Redis brings to disk; a look at the state costs it nothing.
        self._pause_s, self._renewed_at = min(1.0, ttl_s / 3), float("-inf")
        self._thread = SupervisedThread("lease-keeper", self._beat, pause_s=self._pause_s)
        self.last_answer = time.monotonic()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the heartbeat; leases still held run out by themselves."""
        self._thread.stop()

    def hold(self, lease: Lease, lost: Lost) -> None:
        with self._lock:
            self._held[lease] = lost
            self._renewed[lease] = time.monotonic()

    def drop(self, lease: Lease) -> None:
        with self._lock:
            self._held.pop(lease, None)
            self._renewed.pop(lease, None)

    def is_lease_current(self, lease: Lease) -> bool:
        """Whether nobody else can have this lease: it was renewed within its time to live.

        A worker that was frozen or cut off may have been replaced and not know it yet: what it
        begins then, another one may have kept already. Does not block.
        """
        renewed = self._renewed.get(lease)
        return renewed is not None and time.monotonic() - renewed < self._ttl_s

    def held(self) -> list[Lease]:
        with self._lock:
            return list(self._held)

    def _beat(self) -> bool:
        """False when every run met something unexpected: no lease of this worker is renewed."""
        by_run: dict[tuple[str, str], list[Lease]] = {}
        for lease in self.held():
            by_run.setdefault((lease.run, lease.stage), []).append(lease)
        now = time.monotonic()
        if now - self._renewed_at < self._ttl_s / 3 - self._pause_s / 2:
            beats = [self._guarded(self._look, run, leases) for (run, _), leases in by_run.items()]
        else:
            beats = [self._guarded(self._renew, run, leases) for (run, _), leases in by_run.items()]
            if self._renew_name is not None:
                beats.append(self._guarded(self._beat_name, "", []))
            # What was not heard of is tried again at the next beat.
            self._renewed_at = now if all(beats) else self._renewed_at
        return not beats or any(beat is not None for beat in beats)

    def _guarded(
        self, beat: Callable[[str, list[Lease]], object], run: str, leases: list[Lease]
    ) -> bool | None:
        """False when the ledger did not answer, None when a bug was met. Neither may end the
        heartbeat: it would take every lease of the worker with it.
        """
        try:
            beat(run, leases)
        except LedgerError as exc:
            log.log(level_of(exc), "heartbeat failed: run=%s leases=%d: %s", run, len(leases), exc)
            return False
        except Exception as exc:  # noqa: BLE001 - told, counted, and the next beat comes
            report(self._thread.name, exc, f"renewing {run}")
            return None
        self.last_answer = time.monotonic()
        return True

    def _beat_name(self, *_: object) -> None:
        if self._renew_name is not None:
            self._renew_name()

    def _look(self, run: str, leases: list[Lease]) -> None:
        state = self._ledger.state(run, leases[0].stage)
        if state != "active":
            for lease in leases:
                self._lose(lease, state)

    def _renew(self, run: str, leases: list[Lease]) -> None:
        sent_at = time.monotonic()
        state, held = self._ledger.renew(run, leases, self._ttl_s)
        for lease, is_held in zip(leases, held, strict=True):
            with self._lock:
                if is_held and lease in self._held:
                    self._renewed[lease] = sent_at
            if not is_held:
                self._lose(lease, "unknown" if state == "unknown" else "fenced")
            elif state != "active":
                self._lose(lease, state)

    def _lose(self, lease: Lease, why: str) -> None:
        with self._lock:
            lost = self._held.pop(lease, None)
            self._renewed.pop(lease, None)
        if lost is not None:
            log.warning("lease lost: run=%s batch=%s: %s", lease.run, lease.batch, why)
            lost(why)
