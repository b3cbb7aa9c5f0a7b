"""The object store against a real S3 server, and against ones that misbehave."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from pydantic import SecretStr

from dflashq.blobs import s3 as blobs_s3
from dflashq.blobs.s3 import Blobs
from dflashq.config import Settings
from dflashq.core.errors import BlobError, BlobMissingError
from dflashq.system.ports import free_port


def test_put_get_head_delete(blobs: Blobs) -> None:
    blobs.put("runs/a/state.json", b"first", {"sha256": "1"})
    blobs.put("runs/a/state.json", b"second", {"sha256": "2"})
    found = blobs.get("runs/a/state.json")
    assert (found.body, found.metadata) == (b"second", {"sha256": "2"})
    assert blobs.head("runs/a/state.json") == {"sha256": "2"}
    blobs.delete("runs/a/state.json")
    blobs.delete("runs/a/state.json")
    assert blobs.head("runs/a/state.json") is None
    with pytest.raises(BlobMissingError, match=r"runs/a/state\.json does not exist"):
        blobs.get("runs/a/state.json")


def test_put_absent_keeps_the_first_object(blobs: Blobs) -> None:
    assert blobs.put_absent("k", b"mine", {"sha256": "m"}) is True
    assert blobs.put_absent("k", b"theirs", {"sha256": "t"}) is False
    assert blobs.get("k").body == b"mine"
    assert blobs.head("k") == {"sha256": "m"}


def test_an_empty_object_is_an_object(blobs: Blobs) -> None:
    assert blobs.put_absent("empty", b"", {}) is True
    assert blobs.put_absent("empty", b"x", {}) is False
    assert blobs.get("empty").body == b""
    assert blobs.head("empty") == {}


def test_sixteen_racers_have_one_winner(blobs: Blobs) -> None:
    start = threading.Barrier(16)

    def race(number: int) -> bool:
        start.wait()
        return blobs.put_absent("raced", f"{number}".encode() * 10_000, {"by": str(number)})

    with ThreadPoolExecutor(16) as pool:
        won = list(pool.map(race, range(16)))
    assert won.count(True) == 1
    assert blobs.head("raced") == {"by": str(won.index(True))}
    assert blobs.get("raced").body == str(won.index(True)).encode() * 10_000


def test_list_is_sorted_and_relative_to_the_prefix(blobs: Blobs) -> None:
    keys = [f"runs/a/completions/batch-{number:06d}.jsonl.zst" for number in range(25)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: blobs.put(key, b"x"), keys))
    blobs.put("runs/b/completions/other", b"x")
    assert list(blobs.list("runs/a/")) == keys
    assert list(blobs.list("runs/none/")) == []


def test_list_reads_every_page(blobs: Blobs) -> None:
    keys = [f"many/{number:05d}" for number in range(1_003)]  # a page holds 1,000
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda key: blobs.put(key, b""), keys))
    assert list(blobs.list("many/")) == keys


def test_another_prefix_sees_nothing(blobs: Blobs, settings: Settings) -> None:
    blobs.put("runs/a/run.json", b"x")
    other = Blobs(settings.model_copy(update={"s3_prefix": "elsewhere/"}))
    assert other.head("runs/a/run.json") is None


def test_a_prefix_is_a_folder_with_or_without_its_slash(settings: Settings) -> None:
    folder = settings.s3_prefix.rstrip("/")
    Blobs(settings.model_copy(update={"s3_prefix": folder})).put("runs/a/run.json", b"x")
    assert Blobs(settings).get("runs/a/run.json").body == b"x"


def test_a_real_store_passes_the_check_and_keeps_no_probe(blobs: Blobs) -> None:
    blobs.check_conditional_put("runs/a/")
    assert list(blobs.list("")) == []


def test_a_missing_bucket_is_named(settings: Settings) -> None:
    blobs = Blobs(settings.model_copy(update={"s3_bucket": "no-such-bucket"}))
    with pytest.raises(BlobError, match=r"s3://no-such-bucket/.*NoSuchBucket.*DFLASHQ_S3_BUCKET"):
        blobs.put("k", b"x")


def test_wrong_credentials_are_named_but_not_told(settings: Settings) -> None:
    secret = SecretStr("hush-hush-secret")
    blobs = Blobs(settings.model_copy(update={"s3_secret_access_key": secret}))
    with pytest.raises(BlobError, match="DFLASHQ_S3_SECRET_ACCESS_KEY") as caught:
        blobs.put("k", b"x")
    assert "hush-hush" not in f"{caught.value!r}{caught.value.__cause__!r}{blobs!r}"


def test_a_dead_server_is_a_blob_error(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobs_s3, "MAX_TRIES", 1)
    endpoint = f"http://127.0.0.1:{free_port()}"
    blobs = Blobs(settings.model_copy(update={"s3_endpoint_url": endpoint}))
    for call in (
        lambda: blobs.put("k", b"x"),
        lambda: blobs.put_absent("k", b"x", {}),
        lambda: blobs.get("k"),
        lambda: blobs.head("k"),
        lambda: list(blobs.list("")),
        lambda: blobs.delete("k"),
    ):
        with pytest.raises(BlobError, match=f"{endpoint}.*DFLASHQ_S3_ENDPOINT_URL"):
            call()


class _FakeS3(BaseHTTPRequestHandler):
    """Answers puts with `statuses` in turn and keeps the last body, whatever the condition."""

    protocol_version = "HTTP/1.1"
    statuses: Iterator[int]
    stored: dict[str, bytes]

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        status = next(self.statuses)
        if status == 200:
            self.stored[self.path] = body
        self._answer(status)

    def do_GET(self) -> None:
        self._answer(200, self.stored[self.path])

    def do_DELETE(self) -> None:
        self.stored.pop(self.path, None)
        self._answer(204)

    def _answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args: object) -> None:
        """Quiet: pytest's output is for failures."""


@contextmanager
def fake_s3(
    settings: Settings, statuses: Iterator[int]
) -> Iterator[tuple[Blobs, dict[str, bytes]]]:
    stored: dict[str, bytes] = {}
    handler = type("Handler", (_FakeS3,), {"statuses": statuses, "stored": stored})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield Blobs(settings.model_copy(update={"s3_endpoint_url": endpoint})), stored
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_store_that_ignores_the_condition_is_refused(settings: Settings) -> None:
    with fake_s3(settings, itertools.repeat(200)) as (blobs, stored):
        with pytest.raises(BlobError, match="of 16 racing writers, it answered 16"):
            blobs.check_conditional_put("runs/a/")
        assert stored == {}


def test_a_busy_key_is_tried_again(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobs_s3, "_CONFLICT_PAUSE_S", 0.001)
    with fake_s3(settings, iter([409, 409, 200])) as (blobs, stored):
        assert blobs.put_absent("k", b"x", {}) is True
        assert list(stored.values()) == [b"x"]
    with fake_s3(settings, iter([409, 412])) as (blobs, stored):
        assert blobs.put_absent("k", b"x", {}) is False
        assert stored == {}


def test_a_key_that_stays_busy_is_an_error(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blobs_s3, "_CONFLICT_PAUSE_S", 0.001)
    with (
        fake_s3(settings, itertools.repeat(409)) as (blobs, _),
        pytest.raises(BlobError, match=r"HTTP 409.*over 8 tries"),
    ):
        blobs.put_absent("k", b"x", {})


def test_a_server_error_is_retried(settings: Settings) -> None:
    with fake_s3(settings, iter([500, 200])) as (blobs, stored):
        blobs.put("k", b"x")
        assert list(stored.values()) == [b"x"]
