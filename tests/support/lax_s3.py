"""An S3 that ignores `If-None-Match`, as some do; dflashq must refuse it."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.support.server_thread import ServerThread


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
        """Log nothing."""


class LaxS3(ServerThread):
    """PUT, GET and DELETE without conditions or signatures; a context manager."""

    def __init__(self) -> None:
        handler = type("Handler", (_Handler,), {"objects": {}})
        super().__init__(ThreadingHTTPServer(("127.0.0.1", 0), handler))
        self.endpoint_url = f"http://127.0.0.1:{self.port}"
