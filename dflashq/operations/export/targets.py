"""Where an export goes: a folder, or a prefix on S3. A file is whole or absent at any time."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from dflashq.blobs.s3 import Blobs
from dflashq.config import Settings
from dflashq.core import codec
from dflashq.core.errors import BlobMissingError, ConflictError, DflashqError, UsageError


class Target(Protocol):
    """Where files are written. Names are relative, with `/` between folders.

    All methods block and are safe to repeat. DflashqError when the target cannot be used.
    """

    def read(self, name: str) -> bytes | None:
        """The file, None when it is absent."""

    def sha256(self, name: str) -> str | None:
        """The hash (hex) of the file, None when it is absent."""

    def put_new(self, name: str, body: bytes) -> None:
        """Write a file that is absent. ConflictError when one with other bytes exists."""

    def put(self, name: str, body: bytes) -> None:
        """Write a file, over an older one if there is one."""

    def is_empty(self) -> bool:
        """Whether the target holds no file."""


def open_target(out: str, settings: Settings) -> Target:
    """A folder, or `s3://bucket/prefix` on the S3 of the settings. UsageError for neither."""
    if "://" not in out:
        return LocalFolder(Path(out))
    parts = urlsplit(out)
    if parts.scheme != "s3" or not parts.netloc or not parts.path.strip("/"):
        raise UsageError(f"{out!r} is neither a folder nor s3://bucket/prefix")
    place = {"s3_bucket": parts.netloc, "s3_prefix": parts.path.strip("/") + "/"}
    return S3Prefix(Blobs(settings.model_copy(update=place)))


class LocalFolder:
    """A folder on this machine; it is created with the first file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __str__(self) -> str:
        return str(self._path)

    def read(self, name: str) -> bytes | None:
        try:
            return (self._path / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise _failed(self._path / name, exc) from exc

    def sha256(self, name: str) -> str | None:
        try:
            with (self._path / name).open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise _failed(self._path / name, exc) from exc

    def put_new(self, name: str, body: bytes) -> None:
        existing = self.sha256(name)
        if existing is None:
            self.put(name, body)
        elif existing != codec.sha256(body):
            raise _conflict(str(self._path / name))

    def put(self, name: str, body: bytes) -> None:
        """Write a file beside it, flush that to the disk, rename it: never half of it is seen."""
        path = self._path / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(prefix=".making-", dir=path.parent)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(body)
                    file.flush()
                    os.fsync(file.fileno())
                Path(temporary).chmod(0o644)
                Path(temporary).replace(path)
            finally:
                Path(temporary).unlink(missing_ok=True)
        except OSError as exc:
            raise _failed(path, exc) from exc

    def is_empty(self) -> bool:
        if not self._path.exists():
            return True
        try:
            return all(entry.name.startswith(".making-") for entry in self._path.iterdir())
        except OSError as exc:
            raise _failed(self._path, exc) from exc


class S3Prefix:
    """A bucket and prefix on S3."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs

    def __str__(self) -> str:
        return f"s3://{self._blobs.bucket}/{self._blobs.prefix}"

    def read(self, name: str) -> bytes | None:
        try:
            return self._blobs.get(name).body
        except BlobMissingError:
            return None

    def sha256(self, name: str) -> str | None:
        body = self.read(name)
        return None if body is None else codec.sha256(body)

    def put_new(self, name: str, body: bytes) -> None:
        digest = codec.sha256(body)
        written = self._blobs.put_absent(name, body, {"sha256": digest})
        if not written and self.sha256(name) != digest:
            raise _conflict(f"{self}{name}")

    def put(self, name: str, body: bytes) -> None:
        self._blobs.put(name, body, {"sha256": codec.sha256(body)})

    def is_empty(self) -> bool:
        return next(self._blobs.list(""), None) is None


def _conflict(name: str) -> ConflictError:
    return ConflictError(
        f"{name} holds something else than this export writes there: it is damaged, or another "
        "program wrote it. Nothing was overwritten; delete it to have it made anew."
    )


def _failed(path: Path, exc: OSError) -> DflashqError:
    return DflashqError(
        f"{path} cannot be used: {exc.strerror or exc}. Finished shards stand; the same command "
        "goes on when the cause is gone."
    )
