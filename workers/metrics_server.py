"""A worker's own `/metrics`: its counters and gauges, then its engine's own metrics."""

from __future__ import annotations

import logging
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import requests
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from pydantic import SecretStr

from dflashq.config import Settings
from dflashq.core import metrics
from dflashq.core.metrics import Gauge
from dflashq.engine.http_probe import get_text
from dflashq.operations.monitoring.prometheus import CONTENT_TYPE, Values, family
from dflashq.system.threads import SupervisedThread, report
from workers.state import WorkerState

log = logging.getLogger(__name__)

ACCEPT_PAUSE_S = 1.0
_GPU_NAME = re.compile(r"gpu(\d+)@")


class WorkerCollector(Collector):
    """Reads a worker's state whenever it is scraped; blocks for the engine's answer, seconds."""

    def __init__(self, state: Callable[[], WorkerState], engine_key: SecretStr | None) -> None:
        self._state, self._engine_key = state, engine_key

    def collect(self) -> Iterable[Metric]:
        """The worker's counters and gauges, then what its engine says of itself."""
        state = self._state()
        common = {"worker": state.name, "gpu": state.gpu}
        for counter in metrics.counted(metrics.WORKER):
            yield family(counter, counter.counts(), common)
        for gauge, values in gauges(state).items():
            yield family(gauge, values, common)
        yield from self._of_engine(state, common)

    def _of_engine(self, state: WorkerState, common: dict[str, str]) -> Iterator[Metric]:
        """The engine's metrics under the runs that it works for; several runs are one label."""
        runs = ",".join(sorted({run for run, _ in state.batches}))
        for engine_metric in engine_families(self._scrape(state.engine_url)):
            labelled = Metric(engine_metric.name, engine_metric.documentation, engine_metric.type)
            for sample in engine_metric.samples:
                labels = {**sample.labels, **common, "run": runs}
                labelled.add_sample(sample.name, labels, sample.value)
            yield labelled

    def _scrape(self, engine_url: str) -> str:
        if not engine_url:
            return ""
        try:
            return get_text(f"{engine_url}/metrics", self._engine_key)
        except requests.RequestException as exc:
            log.debug("the engine's metrics are missing from this scrape: %s", exc)
            return ""


def engine_families(text: str) -> list[Metric]:
    """An engine's own metrics, `sglang:…` or `vllm:…`; none when the text is no metrics."""
    try:
        return [f for f in text_string_to_metric_families(text) if ":" in f.name]
    except ValueError as exc:
        log.warning("the engine's metrics are missing from this scrape: %s", exc)
        return []


def gauges(state: WorkerState) -> dict[Gauge, Values]:
    """How the worker is now: a sample for every gauge that is declared."""
    by_run = Counter[tuple[str, ...]]((run,) for run, _ in state.batches)
    return {
        metrics.IN_FLIGHT: {(): state.in_flight},
        metrics.IN_FLIGHT_LIMIT: {(): state.limit},
        metrics.GATE_WAITING: {(): state.waiting},
        metrics.GATE_CLOSED: {(reason,): 1 for reason in state.gate_reasons},
        metrics.KEEP_FULL: {(): float(state.keep_full)},
        metrics.ENGINE_UP: {(): float(bool(state.engine_url))},
        metrics.ENGINE_SICK: {(): float(bool(state.sick))},
        metrics.ENGINE_RESTARTS: {(): state.engine_restarts},
        metrics.BATCHES_AT_WORK: dict(by_run),
        metrics.HINTS_TAKEN: {(): state.hints_taken},
        metrics.HEARTBEAT_AGE: {(): state.heartbeat_age_s},
    }


def port_of(settings: Settings, worker: str) -> int:
    """The port of this worker: the setting plus its GPU's index, so that a host's do not collide.

    The index is that of the setting or, for a GPU given by UUID, of the worker's name `gpu3@HOST`;
    a worker without either takes the port as it is. 0 when there is to be none.
    """
    named = _GPU_NAME.match(worker)
    index = settings.gpu if settings.gpu.isdecimal() else named[1] if named else "0"
    return settings.metrics_port + int(index) if settings.metrics_port else 0


class MetricsHttpServer:
    """Answers GET /metrics with what `text` gives, in Prometheus' plain format whatever is asked.

    The client library's own server offers OpenMetrics too, whose writer turns the colons of an
    engine's names into underscores. OSError when the address is taken.
    """

    def __init__(self, host: str, port: int, text: Callable[[], bytes]) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = 30

            def do_GET(self) -> None:
                is_scrape = self.path.partition("?")[0] == "/metrics"
                body = text() if is_scrape else b"see /metrics\n"
                self.send_response(200 if is_scrape else 404)
                self.send_header("Content-Type", CONTENT_TYPE if is_scrape else "text/plain")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """A scrape is no news."""

        self._server = _Server((host, port), Handler)
        self._thread = SupervisedThread("metrics", self._server.serve_forever, wake=self._end)
        self._thread.start()

    def _end(self) -> None:
        if self._thread.alive:
            self._server.shutdown()

    def stop(self) -> None:
        """Close the port. Safe to repeat."""
        self._thread.stop()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    """A thread for each scrape; what goes wrong in one is told and counted."""

    daemon_threads = True

    def get_request(self) -> tuple[Any, Any]:
        try:
            return super().get_request()
        except OSError as exc:
            # Out of descriptors the listener stays readable: without a pause it would spin.
            report("metrics", exc, "accepting a scrape")
            time.sleep(ACCEPT_PAUSE_S)
            raise

    def handle_error(self, request: Any, client_address: Any) -> None:
        exc = sys.exception()
        # A scraper that hangs up is no news.
        if exc is not None and not isinstance(exc, ConnectionError | TimeoutError):
            report("metrics", exc, "answering a scrape")


class MetricsServer:
    """Serves one worker. A port that is taken costs the metrics, never the work."""

    def __init__(
        self,
        settings: Settings,
        worker: str,
        state: Callable[[], WorkerState],
        engine_key: SecretStr | None,
    ) -> None:
        self._host, self._port = settings.metrics_host, port_of(settings, worker)
        self._collector = WorkerCollector(state, engine_key)
        self._server: MetricsHttpServer | None = None

    def start(self) -> None:
        """Listen, unless the settings say not to. Does not block."""
        if not self._port:
            return
        try:
            self._server = MetricsHttpServer(self._host, self._port, self.text)
        except OSError as exc:
            log.error(
                "no metrics from this worker: %s:%d cannot be listened on (%s). The work goes on; "
                "set DFLASHQ_METRICS_PORT to a free one",
                self._host,
                self._port,
                exc,
            )
            return
        log.info("metrics at http://%s:%d/metrics", self._host, self._port)

    def text(self) -> bytes:
        """What a scrape gets. Blocks for the engine's answer, seconds at most."""
        registry = CollectorRegistry()
        registry.register(self._collector)
        return generate_latest(registry)

    def stop(self) -> None:
        """Close the port. Safe to repeat."""
        if self._server is not None:
            self._server.stop()
            self._server = None
