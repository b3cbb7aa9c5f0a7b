"""How a worker makes itself known: its metrics, its name in the log, rejections, alerts."""

from __future__ import annotations

from collections.abc import Callable

from dflashq.config import Settings
from dflashq.core import alerts
from dflashq.core.errors import DflashqError
from dflashq.core.worker_identity import WorkerBoot
from dflashq.engine.profiles import Profile
from dflashq.ledger import Ledger
from dflashq.operations.alerts.dispatcher import AlertDispatcher
from workers import log_setup
from workers.metrics_server import MetricsServer
from workers.rejection_log import RejectionLog
from workers.state import WorkerState


class Telemetry:
    """The channels of one worker. `start` does not block; `stop` does, until they are drained."""

    def __init__(
        self,
        settings: Settings,
        profile: Profile,
        boot: WorkerBoot,
        ledger: Ledger,
        state: Callable[[], WorkerState],
    ) -> None:
        self._gpu, self._boot = settings.gpu, boot
        self.dispatcher = AlertDispatcher(settings, ledger)
        self._metrics = MetricsServer(settings, boot.name, state, profile.api_key(settings))
        self._rejections = RejectionLog(settings.state_dir / "logs", boot.name)

    def start(self) -> None:
        """Name the worker in every log record, then open the channels. Safe to repeat."""
        log_setup.identify(self._boot.name, self._gpu)
        self._rejections.start()
        self._metrics.start()

    def engine_failed(self, error: DflashqError) -> None:
        """Alert that the engine is beyond repair; no poll of the ledger would see it in time."""
        self.dispatcher.dispatch(alerts.engine_failed(self._boot.name, str(error), self._boot.text))

    def stop(self) -> None:
        """Close the channels. Safe to repeat."""
        self._metrics.stop()
        self._rejections.stop()
        self.dispatcher.stop()
