"""A TCP proxy that fails on demand: the network between a worker and its Redis or its S3."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Self

from tests.support.wait import WAIT_S

CHUNK = 1 << 18
VERBS = (b"GET ", b"PUT ", b"HEAD ", b"POST ", b"DELETE ")


class Mode(Enum):
    """What the proxy does with the bytes that reach it."""

    PASS = "pass"
    CUT = "cut"
    FREEZE = "freeze"
    LOSE_REPLIES = "lose replies"
    DAMAGE = "damage"
    ANSWER = "answer"


@dataclass(eq=False)
class _Link:
    """A client's connection and the proxy's own to the server; `losing` its next reply."""

    client_in: asyncio.StreamReader
    client_out: asyncio.StreamWriter
    server_in: asyncio.StreamReader
    server_out: asyncio.StreamWriter
    losing: bool = False

    def abort(self) -> None:
        self.client_out.transport.abort()
        self.server_out.transport.abort()


class TcpProxy:
    """Listens on 127.0.0.1:`port` in front of a server; a context manager with its own thread.

    Every change is in force when its method returns, for open connections as well. `lost`,
    `answered` and `damaged` count replies that were lost, requests that were answered here, and
    requests that were damaged.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._mode, self._delay_s = Mode.PASS, 0.0
        self._canned: tuple[int, str] = (503, "SlowDown")
        self._only = b""
        self._mark: bytes | None = None
        self._links: set[_Link] = set()
        self.port = 0
        self.lost = 0
        self.answered = 0
        self.damaged = 0
        self._loop = asyncio.new_event_loop()
        self._flow = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._started = threading.Event()

    # --- faults, set by a test

    def pass_on(self) -> None:
        """Pass everything on again, without delay."""
        self._set(Mode.PASS, 0.0)

    def cut(self) -> None:
        """Reset every connection, and each new one."""
        self._set(Mode.CUT)
        self._do(self._abort_all)

    def reset(self) -> None:
        """Reset every connection once; new ones pass."""
        self._do(self._abort_all)

    def freeze(self) -> None:
        """Accept connections, but pass nothing on in either direction."""
        self._set(Mode.FREEZE)

    def delay(self, seconds: float) -> None:
        """Pass everything on, each piece `seconds` later."""
        self._set(Mode.PASS, seconds)

    def lose_replies(self) -> None:
        """Pass requests on, but reset the connection in place of each reply."""
        self._set(Mode.LOSE_REPLIES)

    def lose_reply_to(self, mark: bytes) -> None:
        """Reset the connection in place of the reply to the next request that contains `mark`."""
        self._mark = mark

    def damage(self) -> None:
        """Flip one bit of every request body (HTTP)."""
        self._set(Mode.DAMAGE)

    def answer(self, status: int, code: str, *, only: bytes = b"") -> None:
        """Answer each request that contains `only` with an error of S3, in the server's place."""
        self._canned, self._only = (status, code), only
        self._set(Mode.ANSWER)

    # --- its thread

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._do(self._abort_all)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._flow.set()
        server = self._loop.run_until_complete(
            asyncio.start_server(self._serve, "127.0.0.1", 0, limit=CHUNK)
        )
        self.port = int(server.sockets[0].getsockname()[1])
        self._started.set()
        self._loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    def _set(self, mode: Mode, delay_s: float = 0.0) -> None:
        def change() -> None:
            self._mode, self._delay_s = mode, delay_s
            (self._flow.clear if mode is Mode.FREEZE else self._flow.set)()

        self._do(change)

    def _do(self, change: Callable[[], None]) -> None:
        done = threading.Event()

        def run() -> None:
            change()
            done.set()

        self._loop.call_soon_threadsafe(run)
        assert done.wait(WAIT_S), "the proxy's event loop is stuck"

    def _abort_all(self) -> None:
        for link in self._links:
            link.abort()

    # --- one connection

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._mode is Mode.CUT:
            writer.transport.abort()
            return
        try:
            link = _Link(reader, writer, *await asyncio.open_connection(*self._target, limit=CHUNK))
        except OSError:
            writer.transport.abort()
            return
        self._links.add(link)
        pumps = [asyncio.create_task(pump(link)) for pump in (self._requests, self._replies)]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            link.abort()  # the proxy ends
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            self._links.discard(link)
            link.client_out.close()
            link.server_out.close()

    async def _requests(self, link: _Link) -> None:
        with contextlib.suppress(OSError):
            while piece := await link.client_in.read(CHUNK):
                await self._hold()
                if self._mode is Mode.ANSWER and self._only in piece:
                    await self._answer(link)
                    return
                if self._mark is not None and self._mark in piece:
                    self._mark, link.losing = None, True
                if self._mode is Mode.DAMAGE and not piece.startswith(VERBS):
                    self.damaged += 1
                    middle = len(piece) // 2
                    piece = piece[:middle] + bytes([piece[middle] ^ 1]) + piece[middle + 1 :]
                link.server_out.write(piece)
                await link.server_out.drain()

    async def _replies(self, link: _Link) -> None:
        with contextlib.suppress(OSError):
            while piece := await link.server_in.read(CHUNK):
                await self._hold()
                interim = piece.startswith(b"HTTP/1.1 100")  # the request is not served yet
                if (link.losing or self._mode is Mode.LOSE_REPLIES) and not interim:
                    self.lost += 1
                    link.abort()
                    return
                link.client_out.write(piece)
                await link.client_out.drain()

    async def _hold(self) -> None:
        await self._flow.wait()
        if self._delay_s:
            await asyncio.sleep(self._delay_s)

    async def _answer(self, link: _Link) -> None:
        status, code = self._canned
        body = f"<Error><Code>{code}</Code><Message>injected by a test</Message></Error>".encode()
        head = (
            f"HTTP/1.1 {status} Injected\r\nContent-Type: application/xml\r\nConnection: close\r\n"
        )
        self.answered += 1
        link.client_out.write(
            head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body
        )
        await link.client_out.drain()
        link.client_out.write_eof()
        # Read what the client still sends, or a reset would overtake the answer.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2):
                while await link.client_in.read(CHUNK):
                    pass
