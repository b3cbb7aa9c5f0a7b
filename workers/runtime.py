"""Everything that one worker process owns, from its boot to its end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from dflashq.blobs.s3 import Blobs
from dflashq.config import Settings
from dflashq.core.errors import DflashqError, LedgerError, UsageError
from dflashq.core.json_logging import level_of
from dflashq.core.worker_identity import WorkerBoot
from dflashq.engine.chat_renderer import ChatRenderer
from dflashq.engine.profile_match import running_limit
from dflashq.engine.profiles import Profile
from dflashq.ledger import Hints, LeaseHeartbeat, Ledger
from dflashq.ledger.connection import out_of_memory
from dflashq.operations.hosts import resource_needs
from dflashq.operations.housekeeping.canary import judge_canaries
from dflashq.operations.housekeeping.finalize import close_finished
from dflashq.operations.housekeeping.progress import keep_progress
from dflashq.operations.monitoring.progress_object import write_progress
from dflashq.operations.runs.hinting import hint_pending
from dflashq.stages.engine_session import EngineSession
from dflashq.stages.event_loop import EventLoopThread
from dflashq.stages.generate.stage import GenerateStage
from dflashq.stages.keep_writer import KeepWriter
from dflashq.stages.rows.at_once import RowsAtOnce
from dflashq.stages.runner import StageRunner
from dflashq.system.process_identity import new_boot
from dflashq.system.threads import OneShotThread
from workers.periodic import PeriodicThread
from workers.telemetry import Telemetry
from workers.worker_name import WorkerName

log = logging.getLogger(__name__)


class WorkerRuntime:
    """A worker's ledger, store, station and clock. `open` and `close` block.

    `on_engine_lost`, `on_consumer_hung` and `worker_name.on_replaced` say how the process ends
    then.
    """

    def __init__(self, settings: Settings, profile: Profile, name: str) -> None:
        self.settings, self.profile, self.name = settings, profile, name
        self._ledger, self._blobs = Ledger(settings), Blobs(settings)
        self._hints = Hints(settings)
        self.worker_name = WorkerName(self._ledger, new_boot(name), settings.lease_ttl_s)
        self.heartbeat = LeaseHeartbeat(self._ledger, settings.lease_ttl_s, self.worker_name.renew)
        self.session = EngineSession(
            *(
                profile,
                ChatRenderer(profile.model.path),
                EventLoopThread(),
                KeepWriter(self._ledger),
            ),
            settings.engine_api_key,
        )
        self.session.is_lease_current = self.heartbeat.is_lease_current
        self._rows: RowsAtOnce | None = None
        if settings.rows_at_once:
            self._rows = RowsAtOnce(
                settings, name, self._ledger, self._blobs, self.heartbeat, self.boot.text
            )
        self.generator = StageRunner(
            GenerateStage(self.session, self._ledger, self._blobs),
            settings,
            name,
            self._ledger,
            self.heartbeat,
            queue=profile.queue,
            boot=self.boot.text,
            on_committed=self._on_committed,
        )
        self.on_engine_lost: Callable[[DflashqError], None] = lambda error: None
        self.on_consumer_hung: Callable[[], None] = lambda: None
        self._telemetry = Telemetry(self, self._ledger)
        self._clock = PeriodicThread(
            *(self._ledger, self._hints, self.generator, self._announce),
            judge_canaries=lambda: judge_canaries(self._ledger, self._blobs, self._hints),
            close_runs=self._close_runs,
            notify=self._telemetry.dispatcher.check,
            on_hung=self._consumer_hung,
        )
        self._closed: dict[str, tuple[int, int]] = {}
        self._ended: set[str] = set()
        self._closing: OneShotThread | None = None
        self._engine_state, self._starts = "starting", 0
        self.engine_url = ""
        self._measured = (time.monotonic(), 0)

    @property
    def boot(self) -> WorkerBoot:
        """This start of the worker."""
        return self.worker_name.boot

    def open(self) -> None:
        """Refuse what cannot be trusted, take the name, start the clock. Safe to repeat.

        DflashqError when Redis or S3 cannot carry a run, or a worker of this name lives.
        """
        version = self._check_ledger()
        self._refuse_budget()
        self._blobs.check_conditional_put("probes/")
        log.info("ledger: Redis %s; store: %r", version, self._blobs)
        self.worker_name.take(self._row())
        for run in self._ledger.runs():
            for batch in self._ledger.disown(run, self.boot):
                log.info(
                    "disowned: run=%s batch=%s: an earlier boot of this worker let it run out",
                    *(run, batch),
                )
        self.heartbeat.start()
        self._telemetry.start()
        self._clock.start()

    def close(self) -> None:
        """After the pool is empty: end the threads, take the worker off the list."""
        if self._rows is not None:
            self._rows.stop()
        self._clock.stop()
        self._telemetry.stop()
        self.heartbeat.stop()
        self.session.close()
        if not self.worker_name.taken:
            return  # nothing of the ledger was touched, and the name may be that of another
        try:
            # What was handed back must not wait for the next worker's sweep.
            hint_pending(self._ledger, self._hints, self.profile.queue)
            self.worker_name.retire()
        except LedgerError as exc:
            log.warning("hints and the list of workers are left to the others: %s", exc)

    # --- the engine's life, told by its supervisor

    def engine_ready(self, base_url: str, server_info: dict[str, Any]) -> None:
        """Talk to it from now on; ConfigError when this host has not the descriptors for it."""
        running = running_limit(self.profile, server_info)
        need = resource_needs.worker_need(self.settings, self.profile, running)
        resource_needs.ensure(need, f"worker {self.name}")
        self._engine_state, self.engine_url = "ready", base_url
        self._starts += 1
        self.session.engine_ready(base_url, server_info)
        self._clock.consumer_starts()

    def engine_down(self, reason: str) -> None:
        self._engine_state, self.engine_url = "down", ""
        self.session.engine_down(reason)

    def engine_failed(self, error: DflashqError) -> None:
        """The supervisor gave up: the worker hands its batches back and exits non-zero."""
        self._engine_state, self.engine_url = "failed", ""
        self._telemetry.engine_failed(error)
        self.session.engine_down(str(error))
        self.on_engine_lost(error)

    def consumer_connected(self, connected: bool) -> None:
        """Told by the consumer's steps: whether hints reach this worker."""
        self._clock.consumer_connected(connected)

    # --- inside

    def _consumer_hung(self) -> None:
        self.on_consumer_hung()

    def _on_committed(self, run: str, batch: str) -> None:
        if self._rows is not None:
            self._rows.on_committed(run, batch)

    def _check_ledger(self) -> str:
        """Redis' version; a full one is no reason to stay away, since commits make room."""
        try:
            return self._ledger.check()
        except LedgerError as exc:
            if not out_of_memory(exc):
                raise
            log.error("this worker starts on a full Redis, whose batches it may commit: %s", exc)
            return "without room"

    def _refuse_budget(self) -> None:
        """Kept work may fill half of Redis at most: the other half keeps the fleet going."""
        maximum = self._ledger.memory()[1]
        if maximum and self.settings.keep_budget_mb * 2**20 > maximum / 2:
            raise UsageError(
                f"DFLASHQ_KEEP_BUDGET_MB={self.settings.keep_budget_mb} is more than half of "
                f"Redis' maxmemory ({maximum // 2**20} MiB): lower the one or raise the other"
            )

    def _close_runs(self) -> None:
        """Write manifests and `progress.json`, in a thread: it reads all that was committed.

        Rows that were left over at a commit get their turn as well, in a thread of their own.
        """
        if self._rows is not None:
            self._rows.catch_up()
        if self._closing is not None and self._closing.alive:
            return
        self._closing = OneShotThread("manifest", self._close_finished)
        self._closing.start()

    def _close_finished(self) -> None:
        try:
            for run in close_finished(self._ledger, self._blobs, self._closed):
                write_progress(self._ledger, self._blobs, run)  # its last state, at once
            keep_progress(self._ledger, self._blobs, self._ended)
        except DflashqError as exc:
            log.log(level_of(exc), "a manifest or progress.json waits: %s", exc)

    def _rate(self) -> float:
        """Output tokens per second since the last time this was asked."""
        now, tokens = time.monotonic(), self.session.output_tokens
        then, before = self._measured
        self._measured = (now, tokens)
        return round((tokens - before) / max(now - then, 1e-3), 1)

    @property
    def engine_restarts(self) -> int:
        """Starts of the engine after the first."""
        return max(0, self._starts - 1)

    def _announce(self) -> None:
        self.worker_name.announce(self._row())

    def _row(self) -> dict[str, Any]:
        """How this worker fares."""
        gate, stats = self.session.gate, self.session.stats
        return {
            "gpu": self.settings.gpu,
            "profile": self.profile.name,
            "queue": self.profile.queue,
            "sick": self.session.sick,
            "sick_since": self.session.health.sick_since_ms,
            "refuses": list(self.generator.refused),
            "engine": self._engine_state,
            "restarts": self.engine_restarts,
            "last_error": self.session.last_error,
            "output_tokens": self.session.output_tokens,
            "tokens_per_s": self._rate(),
            "in_flight": gate.in_flight,
            "limit": gate.limit,
            "waiting": gate.waiting,
            "gate_closed": bool(gate.reasons),
            "closed": [*gate.reasons, *self.generator.refused.values()],
            "batches": [f"{a.lease.run}/{a.lease.batch}" for a in self.generator.active()],
            **(stats.row() if stats is not None else {}),
        }


_desks: list[WorkerRuntime] = []


def install(runtime: WorkerRuntime) -> WorkerRuntime:
    """Make this the process's desk."""
    _desks.append(runtime)
    return runtime


def current() -> WorkerRuntime | None:
    """This process's desk; None outside a running worker."""
    return _desks[-1] if _desks else None


def required() -> WorkerRuntime:
    """This process's desk, for the tasks; UsageError outside a running worker."""
    if not _desks:
        raise UsageError("this runs inside a worker only: celery -A workers worker")
    return _desks[-1]


def close() -> None:
    """Close the desk, if any. Safe to repeat."""
    while _desks:
        _desks.pop().close()
