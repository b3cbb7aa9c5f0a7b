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
from dflashq.engine.chat_renderer import ChatRenderer
from dflashq.engine.profile_match import running_limit
from dflashq.engine.profiles import Profile
from dflashq.engine.supervisor import EngineSupervisor
from dflashq.ledger import Hints, LeaseHeartbeat, Ledger
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
from workers.boot_checks import check_services
from workers.periodic import PeriodicThread
from workers.state import WorkerState
from workers.telemetry import Telemetry
from workers.worker_name import WorkerName

log = logging.getLogger(__name__)

START_POLL_S = 0.2


class WorkerRuntime:
    """A worker's ledger, store, engine and periodic thread. `open` and `close` block.

    The callbacks say how the process ends, from whichever thread finds out: `on_engine_lost` with
    the supervisor's error, `on_consumer_hung` when no hint is taken any more, `on_replaced` when
    another boot has the worker's name. `pause` is called while the name is waited for, and may
    raise to end the wait.
    """

    def __init__(
        self,
        settings: Settings,
        profile: Profile,
        name: str,
        *,
        on_engine_lost: Callable[[DflashqError], None],
        on_consumer_hung: Callable[[], None],
        on_replaced: Callable[[], None],
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self.settings, self.profile, self.name = settings, profile, name
        self._ledger, self._blobs = Ledger(settings), Blobs(settings)
        self._hints = Hints(settings)
        self._worker_name = WorkerName(
            self._ledger,
            new_boot(name),
            settings.lease_ttl_s,
            on_replaced=on_replaced,
            pause=pause,
        )
        self._heartbeat = LeaseHeartbeat(
            self._ledger, settings.lease_ttl_s, self._worker_name.renew
        )
        self.session = EngineSession(
            profile,
            ChatRenderer(profile.model.path),
            EventLoopThread(),
            KeepWriter(self._ledger),
            profile.api_key(settings),
            is_lease_current=self._heartbeat.is_lease_current,
            refund_deaths=self._refund_deaths,
            restart_engine=self._restart_engine,
        )
        self._supervisor = EngineSupervisor(
            profile,
            settings,
            on_ready=self._engine_ready,
            on_down=self._engine_down,
            on_failed=self._engine_failed,
            on_stats=self.session.engine_vitals,
            check=self.session.check_engine,
            in_flight=lambda: self.session.gate.in_flight,
        )
        self._engine_launched = False
        boot = self._worker_name.boot.text
        self._rows: RowsAtOnce | None = None
        if settings.rows_at_once:
            self._rows = RowsAtOnce(
                settings, name, self._ledger, self._blobs, self._heartbeat, boot
            )
        self.generator = StageRunner(
            GenerateStage(self.session, self._ledger, self._blobs),
            settings,
            name,
            self._ledger,
            self._heartbeat,
            queue=profile.queue,
            boot=boot,
            on_committed=self._on_committed,
        )
        self._on_engine_lost = on_engine_lost
        self._telemetry = Telemetry(
            settings, profile, self._worker_name.boot, self._ledger, self.state
        )
        self._periodic = PeriodicThread(
            self._ledger,
            self._hints,
            self.generator,
            self._announce,
            judge_canaries=lambda: judge_canaries(self._ledger, self._blobs, self._hints),
            close_runs=self._close_runs,
            notify=self._telemetry.dispatcher.check,
            on_hung=on_consumer_hung,
        )
        self._closed: dict[str, tuple[int, int]] = {}
        self._ended: set[str] = set()
        self._closing: OneShotThread | None = None
        self._engine, self._engine_starts, self._engine_url = "starting", 0, ""
        self._measured = (time.monotonic(), 0)

    def open(self) -> None:
        """Check the services, take the name, start the threads. Safe to repeat.

        DflashqError when Redis or S3 cannot carry a run, or a worker of this name lives.
        """
        check_services(self.settings, self._ledger, self._blobs)
        self._worker_name.take(self._announcement())
        for run in self._ledger.runs():
            for batch in self._ledger.disown(run, self._worker_name.boot):
                log.info(
                    "disowned: run=%s batch=%s: an earlier boot of this worker let it run out",
                    run,
                    batch,
                )
        self._heartbeat.start()
        self._telemetry.start()
        self._periodic.start()

    def close(self) -> None:
        """After the pool is empty: end the threads, take the worker off the list."""
        if self._rows is not None:
            self._rows.stop()
        self._periodic.stop()
        self._telemetry.stop()
        self._heartbeat.stop()
        self.session.close()
        if not self._worker_name.taken:
            return  # nothing of the ledger was touched, and the name may be that of another
        try:
            # What was handed back must not wait for the next worker's sweep.
            hint_pending(self._ledger, self._hints, self.profile.queue)
            self._worker_name.retire()
        except LedgerError as exc:
            log.warning("hints and the list of workers are left to the others: %s", exc)

    def start_engine(self, check_stop: Callable[[], object]) -> None:
        """Block until the engine is ready; raises what kept it from that.

        `check_stop` is called several times a second meanwhile, and may raise to end the wait.
        """
        self._engine_launched = True
        self._supervisor.launch()
        while not self._supervisor.wait_started(START_POLL_S):
            check_stop()

    def stop_engine(self, grace_s: float | None = None) -> None:
        """End the engine, if it was launched, within `grace_s` (default: the profile's own).

        Blocks until it is gone. Safe to repeat.
        """
        if self._engine_launched:
            log.info("stopping the engine")
            self._supervisor.stop(grace_s)
            self._engine_launched = False

    # --- called by the session; the supervisor is made after it

    def _refund_deaths(self, deaths: int) -> None:
        self._supervisor.refund_deaths(deaths)

    def _restart_engine(self, reason: str) -> None:
        self._supervisor.restart(reason)

    # --- called by the engine's supervisor, from its thread

    def _engine_ready(self, base_url: str, server_info: dict[str, Any]) -> None:
        """Talk to it from now on; ConfigError when this host has not the descriptors for it."""
        running = running_limit(self.profile, server_info)
        need = resource_needs.worker_need(self.settings, self.profile, running)
        resource_needs.ensure(need, f"worker {self.name}")
        self._engine, self._engine_url = "ready", base_url
        self._engine_starts += 1
        self.session.engine_ready(base_url, server_info)
        self._periodic.consumer_starts()

    def _engine_down(self, reason: str) -> None:
        self._engine, self._engine_url = "down", ""
        self.session.engine_down(reason)

    def _engine_failed(self, error: DflashqError) -> None:
        """The supervisor gave up: the worker hands its batches back and exits non-zero."""
        self._engine, self._engine_url = "failed", ""
        self._telemetry.engine_failed(error)
        self.session.engine_down(str(error))
        self._on_engine_lost(error)

    def consumer_connected(self, connected: bool) -> None:
        """Told by the consumer's steps: whether hints reach this worker."""
        self._periodic.consumer_connected(connected)

    # --- inside

    def _on_committed(self, run: str, batch: str) -> None:
        if self._rows is not None:
            self._rows.on_committed(run, batch)

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

    def state(self) -> WorkerState:
        """How this worker fares now. Does not block; safe from any thread."""
        session, gate, stats = self.session, self.session.gate, self.session.stats
        held = bool(self._heartbeat.held())
        return WorkerState(
            name=self.name,
            gpu=self.settings.gpu,
            profile=self.profile.name,
            queue=self.profile.queue,
            engine=self._engine,
            engine_url=self._engine_url,
            engine_restarts=max(0, self._engine_starts - 1),
            sick=session.sick,
            sick_since_ms=session.health.sick_since_ms,
            last_error=session.last_error,
            refused=dict(self.generator.refused),
            output_tokens=session.output_tokens,
            in_flight=gate.in_flight,
            limit=gate.limit,
            waiting=gate.waiting,
            gate_reasons=tuple(gate.reasons),
            keep_full=session.keeping.full,
            hints_taken=self.generator.hints_taken,
            batches=tuple((a.lease.run, a.lease.batch) for a in self.generator.active()),
            heartbeat_age_s=time.monotonic() - self._heartbeat.last_answer if held else 0.0,
            engine_stats=stats.row() if stats is not None else {},
        )

    def _announce(self) -> None:
        self._worker_name.announce(self._announcement())

    def _announcement(self) -> dict[str, Any]:
        state = self.state()
        return state.announcement(self._tokens_per_s(state.output_tokens))

    def _tokens_per_s(self, tokens: int) -> float:
        """Output tokens per second since the last announcement."""
        now = time.monotonic()
        before_s, before = self._measured
        self._measured = (now, tokens)
        return round((tokens - before) / max(now - before_s, 1e-3), 1)


_runtimes: list[WorkerRuntime] = []


def install(runtime: WorkerRuntime) -> WorkerRuntime:
    """Make this the process's runtime."""
    _runtimes.append(runtime)
    return runtime


def current() -> WorkerRuntime | None:
    """This process's runtime; None outside a running worker."""
    return _runtimes[-1] if _runtimes else None


def required() -> WorkerRuntime:
    """This process's runtime, for the tasks; UsageError outside a running worker."""
    if not _runtimes:
        raise UsageError("this runs inside a worker only: celery -A workers worker")
    return _runtimes[-1]


def close() -> None:
    """Close the runtime, if any. Safe to repeat."""
    while _runtimes:
        _runtimes.pop().close()
