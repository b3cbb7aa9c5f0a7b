"""Everything that a fleet produced, as bytes to be searched: files, S3 objects, Redis keys."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dflashq.blobs.s3 import Blobs
from dflashq.core import codec

# Far more than any log of a test; some tests make sparse files of many gigabytes.
READ_BYTES = 64 * 2**20

_READ = {
    b"string": lambda redis, key: redis.get(key),
    b"hash": lambda redis, key: redis.hgetall(key),
    b"list": lambda redis, key: redis.lrange(key, 0, -1),
    b"set": lambda redis, key: redis.smembers(key),
    b"zset": lambda redis, key: redis.zrange(key, 0, -1, withscores=True),
    b"stream": lambda redis, key: redis.xrange(key),
}


def files(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Every file below a folder."""
    for path in sorted(folder.rglob("*")):
        with contextlib.suppress(FileNotFoundError):  # a server's own, cleared away meanwhile
            if path.is_file():
                with path.open("rb") as stream:
                    yield str(path), stream.read(READ_BYTES)


def objects(blobs: Blobs) -> Iterator[tuple[str, bytes]]:
    """Every object under the prefix, decompressed, with its metadata."""
    for key in blobs.list(""):
        blob = blobs.get(key)
        plain = codec.decompress(blob.body) if key.endswith(".zst") else blob.body
        yield f"s3:{key}", plain + json.dumps(blob.metadata).encode()


def redis_keys(redis: Any) -> Iterator[tuple[str, bytes]]:
    """Every key of a database; kept work is compressed, and was on S3 in the clear."""
    for key in redis.scan_iter():
        value = _READ[redis.type(key)](redis, key)
        yield f"redis:{key!r}", key + repr(value).encode()


def spellings(secret: str) -> set[bytes]:
    """A secret as it might be written: plain, in JSON, as Python, in a URL, percent-encoded."""
    ways = {
        secret,
        json.dumps(secret)[1:-1],
        repr(secret)[1:-1],
        quote(secret),
        quote(secret, safe=""),
        secret.replace("&", "&amp;").replace('"', "&#34;"),
        secret.replace('"', "&quot;"),
    }
    return {way.encode() for way in ways}
