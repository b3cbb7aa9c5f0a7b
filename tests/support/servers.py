"""Redis and S3 of one's own for chaos, benchmarks and rehearsals, and settings for any servers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from dflashq.config import Settings
from dflashq.embedded.redis import EmbeddedRedis
from dflashq.embedded.s3 import EmbeddedS3, free_s3_port
from dflashq.system.ports import free_port

PASSWORD, ACCESS_KEY, SECRET_KEY, BUCKET = "own", "own", "own-secret-0123", "own"


def settings_for(redis: EmbeddedRedis, s3: EmbeddedS3, **values: Any) -> Settings:
    """Settings that lead to these two servers; `values` are other settings, or the same anew."""
    addresses: dict[str, Any] = {
        "redis_url": redis.url,
        "redis_password": SecretStr(redis._password),
        "s3_endpoint_url": s3.endpoint_url,
        "s3_bucket": s3.bucket,
        "s3_access_key_id": SecretStr(s3.access_key),
        "s3_secret_access_key": SecretStr(s3._secret_key),
    }
    return Settings(_env_file=None, **(addresses | values))  # type: ignore[call-arg]


@contextmanager
def own_servers(folder: Path) -> Iterator[tuple[EmbeddedRedis, EmbeddedS3]]:
    """A Redis and an S3 whose data lies in `folder`. Blocks until both take writes."""
    with (
        EmbeddedRedis(folder / "redis", free_port(), PASSWORD) as redis,
        EmbeddedS3(folder / "s3", free_s3_port(), ACCESS_KEY, SECRET_KEY, BUCKET) as s3,
    ):
        yield redis, s3
