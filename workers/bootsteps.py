"""Worker bootsteps: the engine is up before the first hint is taken, and the last thing to stop."""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Any

from celery import Celery, bootsteps
from celery.worker import components
from celery.worker import state as worker_state

from dflashq.config import Settings, load
from dflashq.core.errors import DflashqError, UsageError
from dflashq.engine.profiles import load_profile
from dflashq.operations.hosts import resource_needs
from dflashq.system import gc_tuning, threads
from dflashq.system.threads import OneShotThread
from workers import runtime
from workers.consumer_steps import install_consumer_steps
from workers.runtime import WorkerRuntime
from workers.service_wait import refuse_start, wait_out
from workers.stage_worker import StageDrainStep, StageStep

log = logging.getLogger(__name__)

# Exit codes other than 0, by which a supervisor decides on a restart.
REPLACED = 1  # another worker has the name; a restart is refused while that one lives
USAGE = 2  # a setting is wrong
ENGINE_LOST = 70  # the engine is beyond repair on this host
FRESH_START = 75  # a fresh process will do
ABANDON_S, ABANDON_AT_MOST_S = 15.0, 45.0
_DEFAULT_NODE = "celery@"


def install(app: Celery) -> None:
    """Put our steps into the worker; its pool then waits for the engine. Safe to repeat."""
    for step in (EngineStep, StageStep):
        if step not in components.Pool.requires:
            components.Pool.requires = (*components.Pool.requires, step)
    app.steps["worker"].update((EngineStep, StageStep, DrainStep, StageDrainStep))
    install_consumer_steps(app)


def node_name(given: str, gpu: str) -> str:
    """A worker's name: as given with -n, else `gpu0@host`, so that two GPUs are two workers."""
    if gpu and given.startswith(_DEFAULT_NODE):
        return f"gpu{gpu}@{given.removeprefix(_DEFAULT_NODE)}"
    return given


class EngineStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Owns the runtime, and with it the engine: started before the pool, stopped after it."""

    def __init__(
        self,
        parent: Any,
        gpu: str | None = None,
        profile: str | None = None,
        rows: bool = False,
        stage: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(parent, **kwargs)
        self.enabled = not rows and stage is None
        self._abandoning = threading.Lock()
        if not self.enabled:
            return
        chosen = {k: v for k, v in (("gpu", gpu), ("profile", profile)) if v is not None}
        try:
            self.settings: Settings = load(**chosen)
            self.profile = load_profile(self.settings.profile, self.settings)
            if "thread" not in str(parent.pool_cls):
                raise UsageError("workers run on the threads pool: leave -P away")
        except DflashqError as exc:
            refuse_start(exc)
        parent.hostname = node_name(parent.hostname, self.settings.gpu)
        parent.app.amqp.queues.select(self.profile.queue)

    def start(self, parent: Any) -> None:
        """Block until the engine is ready; a half-started worker cleans up after itself."""
        threads.set_fatal_handler(self._fatal)
        try:
            resource_needs.ensure(
                resource_needs.worker_need(self.settings, self.profile), f"worker {parent.hostname}"
            )
            owner = runtime.install(
                WorkerRuntime(
                    self.settings,
                    self.profile,
                    parent.hostname,
                    on_engine_lost=_stop_worker,
                    on_consumer_hung=self._abandon,
                    on_replaced=_stop_replaced,
                    pause=_pause,
                )
            )
            wait_out(owner.open, "the boot")
            # A stop that comes while the model loads must not wait for it.
            owner.start_engine(worker_state.maybe_shutdown)
            gc_tuning.freeze_heap()
        except DflashqError as exc:
            self.stop(parent)
            refuse_start(exc)
        except BaseException:
            self.stop(parent)
            raise

    def _fatal(self, why: str) -> None:
        """Called when a thread has ended for good: give the process up, a fresh one will do."""
        owner = runtime.current()
        log.critical(
            "this worker hands its batches back and exits, so that it is started anew: %s. What "
            "is finished is kept; batches=%d",
            why,
            0 if owner is None else len(owner.generator.active()),
        )
        self._abandon()

    def _abandon(self) -> None:
        """Hand the batches back and end the process, past the consumer, which may hang.

        Does not return, unless another thread has begun it. Handing back may be what is broken, so
        the process ends within `ABANDON_AT_MOST_S` in any case.
        """
        if not self._abandoning.acquire(blocking=False):
            return
        if OneShotThread("deadline", _exit_late).start():
            try:
                self._hand_back()
            except BaseException as exc:  # noqa: BLE001 - the process ends all the same
                threads.report("deadline", exc, "handing back")
        os._exit(FRESH_START)

    def _hand_back(self) -> None:
        owner = runtime.current()
        if owner is not None:
            owner.generator.drain(0.0)
            owner.generator.wait_handed_back(ABANDON_S)
            owner.stop_engine(0)

    def stop(self, parent: Any) -> None:
        """End the engine, then the rest of the runtime. Blocks. Safe to repeat."""
        owner = runtime.current()
        if owner is not None:
            owner.stop_engine()
        runtime.close()
        log.info("worker stopped")

    def terminate(self, parent: Any) -> None:
        """Hand back at once, then stop: for a second signal, or a consumer that ended by itself."""
        if not _stop_requested():
            # Celery aborts when it runs out of descriptors, and would then exit with 0.
            log.critical(
                "the consumer has ended, though nobody asked: this worker hands its batches back "
                "and exits, so that it is started anew"
            )
            parent.exitcode = FRESH_START
        owner = runtime.current()
        if owner is not None:
            owner.generator.drain(0.0)
        self.stop(parent)


class DrainStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Stops after the consumer and before the pool: the batches are handed back here."""

    requires = (components.Pool,)

    def stop(self, parent: Any) -> None:
        """Let in-flight generations end within the grace, keep and release the rest. Blocks."""
        owner = runtime.current()
        if owner is not None:
            log.info("draining: %d batches at work", len(owner.generator.active()))
            owner.generator.drain(owner.settings.drain_grace_s)

    def terminate(self, parent: Any) -> None:
        owner = runtime.current()
        if owner is not None:
            owner.generator.drain(0.0)


def _pause(seconds: float) -> None:
    """Sleep for so long; a stop that was asked for ends the boot instead."""
    worker_state.maybe_shutdown()
    time.sleep(seconds)


def _stop_replaced() -> None:
    """Drain and exit non-zero: another worker has the name."""
    worker_state.should_stop = REPLACED


def _stop_requested() -> bool:
    """Whether a signal, or this worker itself, has asked the process to end."""
    flags = (worker_state.should_stop, worker_state.should_terminate)
    return any(flag is not None and flag is not False for flag in flags)  # 0 is an exit code


def _exit_late() -> None:
    time.sleep(ABANDON_AT_MOST_S)
    log.critical("handing back took too long: the leases of this worker run out by themselves")
    os._exit(FRESH_START)


def _stop_worker(error: DflashqError) -> None:
    """Drain and exit non-zero: another host goes on with the batches.

    With USAGE no fresh process is started, since it would have the same wrong setting.
    """
    worker_state.should_stop = USAGE if isinstance(error, UsageError) else ENGINE_LOST
