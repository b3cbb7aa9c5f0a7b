"""The monitor as a WSGI app, and the server in front of it."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from types import FrameType

from flask import Flask, Response, render_template, request
from waitress.server import create_server
from werkzeug.exceptions import HTTPException
from werkzeug.wrappers import Response as BaseResponse

from dflashq.core.errors import (
    BlobError,
    BlobMissingError,
    DflashqError,
    LedgerError,
    UnknownRunError,
    UsageError,
)
from dflashq.operations.hosts.resource_needs import WEB_CONNECTIONS
from dflashq.operations.monitoring.prometheus import CONTENT_TYPE
from dflashq.system import gc_tuning, threads
from dflashq.web.api import api, json_response
from dflashq.web.auth import Auth, Tokens
from dflashq.web.context import STREAMS, MonitorContext, monitor_of
from dflashq.web.pages import pages
from dflashq.web.sse import stream

log = logging.getLogger(__name__)

# Every live page holds a thread; 12 more are for all other requests.
THREADS = STREAMS + 12
_STATUS: tuple[tuple[type[DflashqError], int], ...] = (
    (UnknownRunError, 404),
    (BlobMissingError, 404),
    (UsageError, 400),
    (LedgerError, 503),
    (BlobError, 502),
    (DflashqError, 409),
)


def create_app(monitor: MonitorContext, tokens: Tokens) -> Flask:
    """The app of one monitor; the caller starts and stops its poller."""
    app = Flask(__name__)
    app.extensions["dflashq"] = monitor
    app.extensions["dflashq.auth"] = Auth(app, tokens)
    for blueprint in (pages, api, stream):
        app.register_blueprint(blueprint)
    app.add_url_rule("/health", "health", _health)
    app.add_url_rule("/metrics", "metrics", _metrics)
    app.register_error_handler(DflashqError, _on_error)
    app.register_error_handler(HTTPException, _on_http_error)
    return app


def _health() -> Response:
    return Response("ok\n", mimetype="text/plain")


def _metrics() -> Response:
    return Response(monitor_of().metrics(), content_type=CONTENT_TYPE)


def _on_error(exc: DflashqError) -> BaseResponse | tuple[str, int]:
    status = next(code for kind, code in _STATUS if isinstance(exc, kind))
    return _error_response(str(exc), status)


def _on_http_error(exc: HTTPException) -> BaseResponse | tuple[str, int]:
    return _error_response(exc.description or exc.name, exc.code or 500)


def _error_response(sentence: str, status: int) -> BaseResponse | tuple[str, int]:
    if request.path.startswith("/api/"):
        return json_response({"error": sentence}, status)
    return render_template("error.html", sentence=sentence, status=status), status


def serve(
    app: Flask, host: str, port: int, monitor: MonitorContext, ready: Callable[[], None]
) -> None:
    """Serve until SIGTERM or SIGINT; blocks. `ready` is called once it listens.

    OSError when the address is taken. DflashqError when a thread has ended that the monitor cannot
    do without; the runs do not depend on it.
    """
    reasons: list[str] = []
    server = create_server(
        app,
        host=host,
        port=port,
        threads=THREADS,
        connection_limit=WEB_CONNECTIONS,
        channel_timeout=120,
        ident="dflashq",
        clear_untrusted_proxy_headers=True,
    )

    def end(_number: int, _frame: FrameType | None) -> None:
        monitor.poller.end()
        raise SystemExit(0)

    def fatal(why: str) -> None:
        reasons.append(why)
        signal.raise_signal(signal.SIGTERM)  # the main thread handles it and ends the server

    signal.signal(signal.SIGTERM, end)
    threads.install_excepthook()
    threads.set_fatal_handler(fatal)
    gc_tuning.freeze_heap()
    monitor.poller.start()
    try:
        ready()
        server.run()
    finally:
        threads.set_fatal_handler(None)
        monitor.poller.stop()
        server.close()
    if reasons:
        raise DflashqError(f"the monitor ends: {reasons[0]}. The runs go on: start it again")
