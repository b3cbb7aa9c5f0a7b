"""How a worker makes itself known: its metrics, its name in the log, rejections, notices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dflashq.core import alerts
from dflashq.core.errors import DflashqError
from dflashq.ledger import Ledger
from dflashq.operations.alerts.dispatcher import AlertDispatcher
from workers import log_setup
from workers.metrics_server import MetricsServer
from workers.rejection_log import RejectionLog

if TYPE_CHECKING:
    from workers.runtime import WorkerRuntime


class Telemetry:
    """All of it for one desk. `start` does not block; `stop` does, for what is left to tell."""

    def __init__(self, runtime: WorkerRuntime, ledger: Ledger) -> None:
        settings = runtime.settings
        self._name, self._gpu, self._boot = runtime.name, settings.gpu, runtime.boot.text
        self.dispatcher = AlertDispatcher(settings, ledger)
        self._metrics = MetricsServer(runtime)
        self._rejections = RejectionLog(settings.state_dir / "logs", runtime.name)

    def start(self) -> None:
        log_setup.identify(self._name, self._gpu)
        self._rejections.start()
        self._metrics.start()

    def engine_failed(self, error: DflashqError) -> None:
        """The engine is beyond repair; no look at the ledger would find that out in time."""
        self.dispatcher.dispatch(alerts.engine_failed(self._name, str(error), self._boot))

    def stop(self) -> None:
        """Safe to repeat."""
        self._metrics.stop()
        self._rejections.stop()
        self.dispatcher.stop()
