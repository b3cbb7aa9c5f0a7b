"""Runs a small server of a test in a thread of its own."""

from __future__ import annotations

import socketserver
import threading
from types import TracebackType
from typing import Self


class ServerThread:
    """Serves on 127.0.0.1:`port` until the context ends; then the port is closed."""

    def __init__(self, server: socketserver.TCPServer) -> None:
        self._server = server
        self._thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        self.port = int(server.server_address[1])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
