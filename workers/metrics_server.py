"""A worker's own `/metrics`: its counters and readings, and its engine's, passed on."""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import requests
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from dflashq.config import Settings
from dflashq.core import metrics
from dflashq.core.metrics import Gauge
from dflashq.engine.http_probe import ask_text
from dflashq.operations.monitoring.prometheus import CONTENT_TYPE, Values, family
from dflashq.system.threads import SupervisedThread, report

if TYPE_CHECKING:
    from workers.runtime import WorkerRuntime

log = logging.getLogger(__name__)

ACCEPT_PAUSE_S = 1.0
_GPU_NAME = re.compile(r"gpu(\d+)@")


class WorkerCollector(Collector):
    """Reads a desk whenever it is scraped; blocks for the engine's answer, seconds at most."""

    def __init__(self, runtime: WorkerRuntime) -> None:
        self._runtime = runtime

    def collect(self) -> Iterable[Metric]:
        common = {"worker": self._runtime.name, "gpu": self._runtime.settings.gpu}
        for counter in metrics.counted(metrics.WORKER):
            yield family(counter, counter.counts(), common)
        for reading, values in readings(self._runtime).items():
            yield family(reading, values, common)
        yield from self._passed_on(common)

    def _passed_on(self, common: dict[str, str]) -> Iterator[Metric]:
        """The engine's metrics under the runs that it works for; several runs are one label."""
        runs = ",".join(sorted({a.lease.run for a in self._runtime.generator.active()}))
        for found in engine_families(self._ask()):
            passed = Metric(found.name, found.documentation, found.type)
            for sample in found.samples:
                labels = {**sample.labels, **common, "run": runs}
                passed.add_sample(sample.name, labels, sample.value)
            yield passed

    def _ask(self) -> str:
        url = self._runtime.engine_url
        if not url:
            return ""
        key = self._runtime.settings.engine_api_key
        external = self._runtime.profile.launch.kind == "external"
        try:
            return ask_text(f"{url}/metrics", key if external else None)
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


def readings(runtime: WorkerRuntime) -> dict[Gauge, Values]:
    """How the worker is now: a sample for every reading that is declared."""
    gate, active = runtime.session.gate, runtime.generator.active()
    by_run: dict[tuple[str, ...], float] = {}
    for attempt in active:
        by_run[attempt.lease.run,] = by_run.get((attempt.lease.run,), 0) + 1
    return {
        metrics.IN_FLIGHT: {(): gate.in_flight},
        metrics.IN_FLIGHT_LIMIT: {(): gate.limit},
        metrics.GATE_WAITING: {(): gate.waiting},
        metrics.GATE_CLOSED: {(reason,): 1 for reason in gate.reasons},
        metrics.KEEP_FULL: {(): float(runtime.session.keeping.full)},
        metrics.ENGINE_UP: {(): float(bool(runtime.engine_url))},
        metrics.ENGINE_SICK: {(): float(bool(runtime.session.sick))},
        metrics.ENGINE_RESTARTS: {(): runtime.engine_restarts},
        metrics.BATCHES_AT_WORK: by_run,
        metrics.HINTS_TAKEN: {(): runtime.generator.hints_taken},
        metrics.HEARTBEAT_AGE: {(): _heartbeat_age_s(runtime)},
    }


def _heartbeat_age_s(runtime: WorkerRuntime) -> float:
    return time.monotonic() - runtime.heartbeat.last_answer if runtime.heartbeat.held() else 0.0


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
                found = self.path.partition("?")[0] == "/metrics"
                body = text() if found else b"see /metrics\n"
                self.send_response(200 if found else 404)
                self.send_header("Content-Type", CONTENT_TYPE if found else "text/plain")
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
    """Serves one desk. A port that is taken costs the metrics, never the work."""

    def __init__(self, runtime: WorkerRuntime) -> None:
        self._runtime = runtime
        self._server: MetricsHttpServer | None = None

    def start(self) -> None:
        """Listen, unless the settings say not to. Does not block."""
        settings = self._runtime.settings
        port = port_of(settings, self._runtime.name)
        if not port:
            return
        try:
            self._server = MetricsHttpServer(settings.metrics_host, port, self.text)
        except OSError as exc:
            log.error(
                "no metrics from this worker: %s:%d cannot be listened on (%s). The work goes on; "
                "set DFLASHQ_METRICS_PORT to a free one",
                *(settings.metrics_host, port, exc),
            )
            return
        log.info("metrics at http://%s:%d/metrics", settings.metrics_host, port)

    def text(self) -> bytes:
        """What a scrape gets. Blocks for the engine's answer, seconds at most."""
        registry = CollectorRegistry()
        registry.register(WorkerCollector(self._runtime))
        return generate_latest(registry)

    def stop(self) -> None:
        """Close the port. Safe to repeat."""
        if self._server is not None:
            self._server.stop()
            self._server = None
