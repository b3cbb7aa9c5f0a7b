"""Readiness says why a server is not ready, and calls none ready that its client cannot use."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from dflashq.engine.dialects import DIALECTS
from dflashq.engine.profiles import Profile
from dflashq.engine.readiness import Readiness
from tests.support.engine_emulator import EmulatedEngine
from tests.support.engine_emulator.dialect_servers import DIALECT_SERVERS
from tests.support.engine_emulator.profile import token_options


def profile_of(dialect: str) -> Profile:
    launch = {"kind": "external", "dialect": dialect}
    return Profile.model_validate({"name": "far", "model": {"id": "tiny"}, "launch": launch})


class Answers(BaseHTTPRequestHandler):
    """Answers every request with the server's `status`, `location` and `body`."""

    def do_GET(self) -> None:
        status, location, body = self.server.answer  # type: ignore[attr-defined]
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(status)
        if location:
            self.send_header("Location", location + self.path)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def readiness(server: ThreadingHTTPServer, dialect: str) -> Readiness:
    return Readiness(profile_of(dialect), f"http://127.0.0.1:{server.server_port}", None)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("status", [301, 307, 308])
def test_a_server_that_redirects_is_not_ready(
    server: ThreadingHTTPServer, tiny_model: Path, dialect: str, status: int
) -> None:
    """The clients do not follow redirects, so each of its generations would fail."""
    [shape, *_] = DIALECT_SERVERS[dialect].values()
    options = token_options(tiny_model) | {"model": "tiny", "tokenizer": tiny_model} | shape
    with EmulatedEngine(**options) as engine:
        server.answer = status, engine.url, b""  # type: ignore[attr-defined]
        ready = readiness(server, dialect)
        assert not ready.reached()
        assert f"it redirects to {engine.url}" in ready.missing
        assert "DFLASHQ_ENGINE_URL" in ready.missing
        assert engine.stats()["requests"] == {"/stats": 1}


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("body", [b"", b"<html>", b"[1]"])
def test_a_server_that_answers_with_anything_else_is_not_ready(
    server: ThreadingHTTPServer, dialect: str, body: bytes
) -> None:
    server.answer = 200, "", body  # type: ignore[attr-defined]
    ready = readiness(server, dialect)
    assert not ready.reached()
    assert ready.missing == "it does not listen yet"
