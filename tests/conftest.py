"""Fixtures: real servers once a session, fresh names in them for every test."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

import hypothesis
import pytest

from dflashq.blobs.s3 import Blobs
from dflashq.config import Settings
from dflashq.core.errors import EmbeddedError
from dflashq.embedded.redis import EmbeddedRedis
from dflashq.embedded.s3 import EmbeddedS3, free_s3_port
from dflashq.system.ports import free_port
from tests.support.paths import ROOT
from tests.support.secret_scan import files, spellings
from tests.support.servers import settings_for

# A busy machine makes examples slow, and a bound on their time tells of nothing else.
hypothesis.settings.register_profile(
    "ours", deadline=None, suppress_health_check=list(hypothesis.HealthCheck), print_blob=True
)
hypothesis.settings.load_profile("ours")

pytest_plugins = ["tests.support.sglang"]

REDIS_PASSWORD = 'pass "word" \\ with #odd chars'
ACCESS_KEY, SECRET_KEY, BUCKET = "test-access", "test-secret-0123456789", "dflashq-test"
DATABASES = itertools.cycle(range(64))

Server = TypeVar("Server", bound=AbstractContextManager[object])


def _started(make: Callable[[], Server], tries: int = 3) -> Server:
    """Start on a new port when another process took the port between probe and start."""
    for attempt in range(tries):
        server = make()
        try:
            server.__enter__()
        except EmbeddedError:
            if attempt == tries - 1:
                raise
        else:
            return server
    raise AssertionError("unreachable")


@pytest.fixture(autouse=True)
def _no_foreign_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's own DFLASHQ_* settings must not decide a test."""
    for name in Settings.model_fields:
        monkeypatch.delenv(f"DFLASHQ_{name.upper()}", raising=False)


@pytest.fixture(scope="session", autouse=True)
def _nothing_tells_a_secret(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No file that the tests of this session leave behind holds a credential of theirs."""
    yield
    wanted = spellings(REDIS_PASSWORD) | spellings(SECRET_KEY)
    leaks = [
        path
        for path, body in files(tmp_path_factory.getbasetemp())
        # The server's own settings: readable by its user alone.
        if not path.endswith("/redis.conf") and any(way in body for way in wanted)
    ]
    assert not leaks, f"credentials of the tests stand in {leaks}"


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedRedis]:
    folder = tmp_path_factory.mktemp("redis")
    server = _started(lambda: EmbeddedRedis(folder, free_port(), REDIS_PASSWORD))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedS3]:
    folder = tmp_path_factory.mktemp("s3")
    server = _started(lambda: EmbeddedS3(folder, free_s3_port(), ACCESS_KEY, SECRET_KEY, BUCKET))
    yield server
    server.stop()


@pytest.fixture
def settings(redis_server: EmbeddedRedis, s3_server: EmbeddedS3, tmp_path: Path) -> Settings:
    """Settings of this test alone: an empty Redis database and an unused S3 prefix."""
    database = next(DATABASES)
    with redis_server.client(database) as client:
        client.flushdb()
    return settings_for(
        redis_server,
        s3_server,
        redis_url=f"redis://127.0.0.1:{redis_server.port}/{database}",
        s3_prefix=f"t-{secrets.token_hex(6)}/",
        lock_dir=tmp_path / "locks",
        state_dir=tmp_path / "state",
    )


@pytest.fixture
def blobs(settings: Settings) -> Blobs:
    return Blobs(settings)


@pytest.fixture
def repository() -> Path:
    """The root of the source tree."""
    return ROOT
