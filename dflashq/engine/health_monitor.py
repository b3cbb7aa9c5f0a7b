"""Looks at a ready engine's `/metrics` every few seconds, and says when it hangs."""

from __future__ import annotations

import logging
from collections.abc import Callable

import requests
from pydantic import SecretStr

from dflashq.engine.http_probe import ask_text
from dflashq.engine.profiles import Launch
from dflashq.engine.stall_detector import StallDetector
from dflashq.engine.stats import EngineStats, parse_metrics, read_vitals

log = logging.getLogger(__name__)


class EngineHealthMonitor:
    """The watch over one start of one engine; belongs to the supervisor's thread.

    `in_flight` counts the requests that we have in it; None when nobody counts.
    """

    def __init__(
        self,
        launch: Launch,
        base_url: str,
        api_key: SecretStr | None,
        in_flight: Callable[[], int] | None,
    ) -> None:
        self._url, self._api_key, self._in_flight = f"{base_url}/metrics", api_key, in_flight
        self._pause_s = launch.poll_s
        self._stall_detector = StallDetector(launch.stall_s)
        self._due: float | None = None
        self._told = False

    def look(self, now_s: float) -> tuple[EngineStats | None, str | None]:
        """Ask when it is time to: (what was seen, why the engine counts as stalled).

        Blocks for seconds at most.
        """
        if self._due is not None and now_s < self._due:
            return None, None
        self._due = now_s + self._pause_s
        stats = self._read()
        asked = self._in_flight() if self._in_flight is not None else None
        stalled = self._stall_detector.stalled(now_s, stats, asked)
        if not self._stall_detector.judging and not self._told:
            self._told = True
            log.warning(
                "the engine shows no token counters at %s (SGLang: --enable-metrics): should it "
                "hang, nobody will notice",
                self._url,
            )
        return stats, stalled

    def _read(self) -> EngineStats | None:
        try:
            return read_vitals(parse_metrics(ask_text(self._url, self._api_key)))
        except requests.RequestException as exc:
            log.debug("no metrics from %s: %s", self._url, exc)
            return None
