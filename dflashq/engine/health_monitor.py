"""Reads the `/metrics` of a ready engine every few seconds, and detects when it hangs."""

from __future__ import annotations

import logging
from collections.abc import Callable

import requests
from pydantic import SecretStr

from dflashq.engine.http_probe import get_text
from dflashq.engine.profiles import Launch
from dflashq.engine.stall_detector import StallDetector
from dflashq.engine.stats import EngineStats, engine_stats, parse_metrics

log = logging.getLogger(__name__)


class EngineHealthMonitor:
    """The monitor of one start of one engine; used by the supervisor's thread only.

    `in_flight` returns how many requests this worker has in the engine; None when it is not known.
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
        self._next_at: float | None = None
        self._warned = False

    def poll(self, now_s: float) -> tuple[EngineStats | None, str | None]:
        """Read the metrics when they are due; returns them, and why the engine counts as stalled.

        `now_s`: seconds of a monotonic clock. Both are None when nothing is due; the first also
        when the metrics cannot be read. Blocks for seconds at most.
        """
        if self._next_at is not None and now_s < self._next_at:
            return None, None
        self._next_at = now_s + self._pause_s
        stats = self._read()
        in_flight = self._in_flight() if self._in_flight is not None else None
        stalled = self._stall_detector.stalled(now_s, stats, in_flight)
        if not self._stall_detector.has_counters and not self._warned:
            self._warned = True
            log.warning(
                "the engine shows no token counters at %s (SGLang: --enable-metrics): should it "
                "hang, nobody will notice",
                self._url,
            )
        return stats, stalled

    def _read(self) -> EngineStats | None:
        try:
            return engine_stats(parse_metrics(get_text(self._url, self._api_key)))
        except requests.RequestException as exc:
            log.debug("no metrics from %s: %s", self._url, exc)
            return None
