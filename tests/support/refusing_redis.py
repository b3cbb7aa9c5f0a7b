"""A server that speaks the protocol of Redis and refuses every command with one sentence."""

from __future__ import annotations

import socketserver

from tests.support.server_thread import ServerThread

# The commands by which a client connects; a busy or full server accepts them.
GREETINGS = frozenset({b"CLIENT", b"SELECT", b"AUTH"})


class _Connection(socketserver.StreamRequestHandler):
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


class RefusingRedis(ServerThread):
    """Answers every command with the error `sentence`; a context manager.

    `greets`: it accepts the commands by which a client connects, and refuses those after them.
    """

    def __init__(self, sentence: str, *, greets: bool = True) -> None:
        server = _Server(("127.0.0.1", 0), _Connection)
        server.sentence, server.greets = sentence.encode(), greets
        super().__init__(server)

    @property
    def url(self) -> str:
        """The address for settings."""
        return f"redis://127.0.0.1:{self.port}/0"
