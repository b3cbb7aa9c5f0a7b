"""A TCP proxy that passes everything on, and on demand loses one reply."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from types import TracebackType
from typing import Self


class LossyProxy:
    """`lose_reply_to(mark)`: the next request with `mark` is served, its reply is not.

    The connection is cut instead, as when the network fails between the two.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._mark: bytes | None = None
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.port = int(self._listener.getsockname()[1])
        self.lost = 0

    def lose_reply_to(self, mark: bytes) -> None:
        self._mark = mark

    def __enter__(self) -> Self:
        self._threads.append(threading.Thread(target=self._accept, daemon=True))
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        for one in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)  # a close would pull the socket from under select
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(client)
            self._threads.append(threading.Thread(target=self._serve, args=(client,), daemon=True))
            self._threads[-1].start()

    def _serve(self, client: socket.socket) -> None:
        lose = False
        with socket.create_connection(self._target) as server, contextlib.suppress(OSError):
            while True:
                for ready in select.select([client, server], [], [])[0]:
                    passed = ready.recv(1 << 20)
                    if not passed or (lose and ready is server):
                        self.lost += lose
                        client.close()
                        return
                    if self._mark is not None and self._mark in passed:
                        self._mark, lose = None, True
                    (server if ready is client else client).sendall(passed)
        client.close()
