"""A worker of a stage that needs no engine: its ledger, its leases, its sweep."""

from __future__ import annotations

import logging
from typing import Any

from celery import bootsteps
from celery.worker import components

from dflashq.blobs.s3 import Blobs
from dflashq.config import Settings, load
from dflashq.core import keys
from dflashq.core.errors import DflashqError, LedgerError, UsageError
from dflashq.core.json_logging import level_of
from dflashq.core.stage_spec import ROWS, STAGES, StageSpec
from dflashq.ledger import Hints, LeaseHeartbeat, Ledger
from dflashq.operations.housekeeping.sweep import Sweeper
from dflashq.stages.registry import BUILDERS
from dflashq.stages.request import request_stage
from dflashq.stages.runner import StageRunner
from dflashq.system.process_identity import new_boot
from dflashq.system.threads import SupervisedThread
from workers.service_wait import refuse_start

log = logging.getLogger(__name__)

_DEFAULT_NODE = "celery@"
_current: list[StageWorker] = []


class StageWorker:
    """What a worker process without an engine owns. `stop` blocks, for work that can end early."""

    def __init__(self, settings: Settings, spec: StageSpec, name: str) -> None:
        self._settings, self._spec = settings, spec
        self._ledger, self._blobs = Ledger(settings), Blobs(settings)
        self._sweeper = Sweeper(self._ledger, Hints(settings), settings.lease_ttl_s)
        self._heartbeat = LeaseHeartbeat(self._ledger, settings.lease_ttl_s)
        self.runner = StageRunner(
            BUILDERS[spec.name](self._ledger, self._blobs),
            settings,
            name,
            self._ledger,
            self._heartbeat,
            boot=new_boot(name).text,
        )
        self._clock = SupervisedThread("clock", self._tick, pause_s=settings.sweep_s)

    def start(self) -> None:
        """Begin to renew and to sweep. Does not block."""
        self._heartbeat.start()
        self._clock.start()

    def process_hint(self, run: str, batch: str) -> str:
        """Work on the hinted batch; what became of the hint, for the log. Blocks; never raises.

        A hint that an older version sent is a request as well: it did not tell the ledger.
        """
        try:
            if self._ledger.state(run, self._spec.name) == "unknown" and self._is_ready(run, batch):
                request_stage(self._ledger, self._blobs, run, self._spec)
                self._ledger.add(run, [batch], self._spec.name)
        except DflashqError as exc:
            log.log(level_of(exc), "hint dropped: run=%s batch=%s: %s", run, batch, exc)
            return f"{run}/{batch} failed: {exc}"
        return self.runner.process_hint(run, batch)

    def _is_ready(self, run: str, batch: str) -> bool:
        """Whether the upstream has committed the batch."""
        upstream = STAGES[self._spec.upstream or ""]
        return self._blobs.head(keys.stage_object(run, upstream, batch)) is not None

    def drain(self, grace_s: float) -> None:
        """Claim nothing more and hand back what can be. Blocks for the grace at most."""
        self.runner.drain(grace_s)

    def stop(self) -> None:
        """After the pool is empty: end the threads. Safe to repeat."""
        self._clock.stop()
        self._heartbeat.stop()

    def _tick(self) -> None:
        try:
            self.runner.resume_recovered()
            self._sweeper.sweep(self._settings.sweep_s * 0.8)
        except LedgerError as exc:
            log.log(level_of(exc), "the clock waits for the ledger: %s", exc)


def required() -> StageWorker:
    """The stage worker of this process, for its tasks; UsageError in any other process."""
    if not _current:
        raise UsageError("this runs inside a worker of that stage only: celery -A workers worker")
    return _current[-1]


class StageStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Starts the stage worker before the pool and stops it after the pool."""

    def __init__(
        self, parent: Any, rows: bool = False, stage: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(parent, **kwargs)
        name = ROWS.name if rows else stage
        self.enabled = name is not None
        if name is None:
            return
        if name not in BUILDERS:
            refuse_start(
                UsageError(f"--stage {name}: there is none but {', '.join(sorted(BUILDERS))}")
            )
        self._spec = STAGES[name]
        parent.hostname = stage_node_name(parent.hostname, self._spec)
        parent.app.amqp.queues.select(self._spec.queue)

    def start(self, parent: Any) -> None:
        """Does not block: hints that come while Redis is away are dropped, and come again."""
        try:
            worker = StageWorker(load(), self._spec, parent.hostname)
        except DflashqError as exc:
            refuse_start(exc)
        _current.append(worker)
        worker.start()

    def stop(self, parent: Any) -> None:
        """End its threads. Safe to repeat."""
        while _current:
            _current.pop().stop()

    def terminate(self, parent: Any) -> None:
        """The same at once."""
        for worker in _current:
            worker.drain(0.0)
        self.stop(parent)


class StageDrainStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Stops after the consumer and before the pool: the batches are handed back here."""

    requires = (components.Pool,)

    def stop(self, parent: Any) -> None:
        """Stop the attempts; each hands its batch back at its next step."""
        for worker in _current:
            worker.drain(0.0)


def stage_node_name(given: str, spec: StageSpec) -> str:
    """The name of a worker without an engine: as given with -n, else `rows@host`."""
    host = given.removeprefix(_DEFAULT_NODE)
    return given if host == given else f"{spec.name}@{host}"
