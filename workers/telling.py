"""How a worker makes itself known: its metrics, its name in the log, rejections, notices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dflashq.core import notice
from dflashq.core.errors import DflashqError
from dflashq.ledger import Ledger
from dflashq.operations.notify import Notifier
from workers import logs
from workers.metrics import MetricsServer
from workers.rejections import RejectionFiles

if TYPE_CHECKING:
    from workers.desk import Desk


class Telling:
    """All of it for one desk. `start` does not block; `stop` does, for what is left to tell."""

    def __init__(self, desk: Desk, ledger: Ledger) -> None:
        settings = desk.settings
        self._name, self._gpu, self._boot = desk.name, settings.gpu, desk.boot.text
        self.notifier = Notifier(settings, ledger)
        self._metrics = MetricsServer(desk)
        self._rejections = RejectionFiles(settings.state_dir / "logs", desk.name)

    def start(self) -> None:
        logs.identify(self._name, self._gpu)
        self._rejections.start()
        self._metrics.start()

    def engine_failed(self, error: DflashqError) -> None:
        """The engine is beyond repair; no look at the ledger would find that out in time."""
        self.notifier.tell(notice.engine_failed(self._name, str(error), self._boot))

    def stop(self) -> None:
        """Safe to repeat."""
        self._metrics.stop()
        self._rejections.stop()
        self.notifier.stop()
