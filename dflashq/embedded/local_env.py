"""Reads and writes `local.env`: addresses and credentials of the servers of `dflashq local`."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from dflashq.core.errors import EmbeddedError
from dflashq.embedded.s3 import PORT_OFFSETS, free_s3_port
from dflashq.system.ports import LOOPBACK, free_port, port_is_free

BUCKET = "dflashq"


@dataclass(frozen=True, slots=True)
class LocalEnv:
    """The ports of the local servers, their credentials and the bucket."""

    redis_port: int
    s3_port: int
    redis_password: str = field(repr=False)
    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    bucket: str = BUCKET

    @classmethod
    def fresh(cls) -> Self:
        """Free ports and new random credentials."""
        return cls(
            redis_port=free_port(),
            s3_port=free_s3_port(),
            redis_password=secrets.token_urlsafe(24),
            access_key=secrets.token_hex(10),
            secret_key=secrets.token_urlsafe(30),
        )

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """What `write` wrote; None when there is no file; EmbeddedError when it is damaged."""
        if not path.exists():
            return None
        rows = dict(line.split("=", 1) for line in path.read_text().splitlines() if "=" in line)
        try:
            return cls(
                redis_port=int(rows["DFLASHQ_REDIS_URL"].rpartition(":")[2].partition("/")[0]),
                s3_port=int(rows["DFLASHQ_S3_ENDPOINT_URL"].rpartition(":")[2]),
                redis_password=rows["DFLASHQ_REDIS_PASSWORD"],
                access_key=rows["DFLASHQ_S3_ACCESS_KEY_ID"],
                secret_key=rows["DFLASHQ_S3_SECRET_ACCESS_KEY"],
                bucket=rows["DFLASHQ_S3_BUCKET"],
            )
        except (KeyError, ValueError) as exc:
            raise EmbeddedError(
                f"{path} is damaged ({type(exc).__name__}: {exc}); the data beside it is whole. "
                "Repair it, or remove it to get new credentials at the next `dflashq local up`."
            ) from None

    def write(self, path: Path) -> None:
        """Write it, readable by its owner only; replaced in one step, so no reader sees half."""
        rows = {
            "DFLASHQ_REDIS_URL": f"redis://{LOOPBACK}:{self.redis_port}/0",
            "DFLASHQ_REDIS_PASSWORD": self.redis_password,
            "DFLASHQ_S3_ENDPOINT_URL": f"http://{LOOPBACK}:{self.s3_port}",
            "DFLASHQ_S3_ACCESS_KEY_ID": self.access_key,
            "DFLASHQ_S3_SECRET_ACCESS_KEY": self.secret_key,
            "DFLASHQ_S3_BUCKET": self.bucket,
        }
        draft = path.with_name(path.name + ".new")
        draft.unlink(missing_ok=True)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as sink:
            sink.writelines(f"{name}={value}\n" for name, value in rows.items())
        draft.rename(path)

    def with_free_redis_port(self) -> Self:
        """The same values; another port for Redis if a process has taken that one."""
        free = port_is_free(self.redis_port)
        return self if free else replace(self, redis_port=free_port())

    def with_free_s3_port(self) -> Self:
        """The same values; another port for S3 if that one or a neighbour of it is taken."""
        free = all(port_is_free(self.s3_port + offset) for offset in PORT_OFFSETS)
        return self if free else replace(self, s3_port=free_s3_port())
