"""A server that speaks Redis' protocol and refuses every command with one sentence."""

from __future__ import annotations

import socketserver
import threading
from types import TracebackType
from typing import Self

# What a client says of itself as it connects; a busy or full server takes it.
GREETINGS = frozenset({b"CLIENT", b"SELECT", b"AUTH"})


class _Talk(socketserver.StreamRequestHandler):
    """One connection: commands are arrays of bulk strings."""

    server: _Server

    def handle(self) -> None:
        while head := self.rfile.readline():
            words = [self._bulk() for _ in range(int(head[1:]))]
            greets = self.server.greets and words[0].upper() in GREETINGS
            self.wfile.write(b"+OK\r\n" if greets else b"-" + self.server.sentence + b"\r\n")

    def _bulk(self) -> bytes:
        length = int(self.rfile.readline()[1:])
        return self.rfile.read(length + 2)[:-2]


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    sentence = b""
    greets = True


class RefusingRedis:
    """127.0.0.1:`port` as a context manager. `greets`: it lets clients in before it refuses."""

    def __init__(self, sentence: str, *, greets: bool = True) -> None:
        self._server = _Server(("127.0.0.1", 0), _Talk)
        self._server.sentence, self._server.greets = sentence.encode(), greets
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @property
    def url(self) -> str:
        """The address for settings."""
        return f"redis://127.0.0.1:{self._server.server_address[1]}/0"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
