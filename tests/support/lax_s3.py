"""An S3 that ignores `If-None-Match`, as some do: for the tests of its refusal."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    objects: dict[str, bytes]

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if "aws-chunked" in (self.headers.get("Content-Encoding") or ""):
            size, _, rest = body.partition(b"\r\n")
            body = rest[: int(size.split(b";")[0], 16)]
        self.objects[self.path.partition("?")[0]] = body
        self._answer(200, b"")

    def do_GET(self) -> None:
        body = self.objects.get(self.path.partition("?")[0])
        self._answer(404 if body is None else 200, body or b"")

    do_HEAD = do_GET

    def do_DELETE(self) -> None:
        self.objects.pop(self.path.partition("?")[0], None)
        self._answer(204, b"")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Quiet."""


class CarelessS3:
    """PUT, GET and DELETE without conditions or signatures; a context manager."""

    def __init__(self) -> None:
        handler = type("Handler", (_Handler,), {"objects": {}})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self.endpoint_url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
