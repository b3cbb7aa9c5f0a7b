"""Sources of models: a folder on S3, and a hub."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from botocore.exceptions import BotoCoreError, ClientError

from dflashq.blobs.s3 import make_client
from dflashq.config import Settings
from dflashq.core.errors import BlobError, UsageError
from dflashq.embedded.cached_build import Echo, run_step

if TYPE_CHECKING:
    from botocore.response import StreamingBody

SCHEME = "s3://"
# Code for the engine's own Python, which has the client of the hub.
DOWNLOAD = (
    "import sys; from huggingface_hub import snapshot_download; "
    "snapshot_download(sys.argv[1], revision=sys.argv[2], local_dir=sys.argv[3])"
)


class S3Folder:
    """A model below `s3://bucket/prefix`, read with the address and the keys of the settings.

    BlobError when S3 refuses or does not answer; UsageError for another kind of address.
    """

    def __init__(self, settings: Settings, address: str) -> None:
        bucket, _, prefix = address.removeprefix(SCHEME).partition("/")
        if not address.startswith(SCHEME) or not bucket:
            raise UsageError(f"{address!r} is no s3://bucket/prefix")
        self.name, self._bucket = address, bucket
        self._prefix = prefix.strip("/") + "/" if prefix.strip("/") else ""
        self._client = make_client(settings)

    def files(self) -> dict[str, int]:
        with _as_blob_error(self.name):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=self._prefix
            )
            sizes = {
                row["Key"].removeprefix(self._prefix): row["Size"]
                for page in pages
                for row in page.get("Contents", [])
            }
        hidden = {name for name in sizes if name.endswith("/") or name.startswith("dflashq-")}
        return {name: size for name, size in sorted(sizes.items()) if name not in hidden}

    def open(self, path: str) -> S3Body:
        what = f"{self.name}: {path}"
        with _as_blob_error(what):
            response = self._client.get_object(Bucket=self._bucket, Key=self._prefix + path)
        return S3Body(what, response["Body"])


class S3Body:
    """The bytes of one object; a connection that breaks is a BlobError."""

    def __init__(self, what: str, body: StreamingBody) -> None:
        self._what, self._body = what, body

    def read(self, size: int) -> bytes:
        with _as_blob_error(self._what):
            return self._body.read(size)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._body.close()


@contextmanager
def _as_blob_error(what: str) -> Iterator[None]:
    try:
        yield
    except (ClientError, BotoCoreError) as exc:
        raise BlobError(f"{what} cannot be read: {exc}. What was fetched stays") from exc


def refuse_unpinned(source: str, revision: str) -> None:
    """UsageError for a model of the hub without a source or without a revision."""
    if not source:
        raise UsageError("the profile names no source on a hub: give --from DIR or s3://…")
    if not revision:
        raise UsageError(
            f"{source} has no pinned revision: set it in the profile, or give --revision COMMIT"
        )


def download(
    python: Path, source: str, revision: str, part: Path, log_file: Path, echo: Echo
) -> None:
    """Download `source` at `revision` from the hub to `part`; the hub's client resumes it.

    Blocks. UsageError without a revision, since a name alone may be another model tomorrow;
    EmbeddedError with the end of the log when the download fails.
    """
    refuse_unpinned(source, revision)
    part.mkdir(parents=True, exist_ok=True)
    argv = [str(python), "-c", DOWNLOAD, source, revision, str(part)]
    offline = {"HF_HUB_OFFLINE": "0"}
    token = {k: v for k, v in os.environ.items() if k == "HF_TOKEN"}
    run_step(f"{source} at {revision[:12]}", argv, log_file, echo, **offline, **token)
