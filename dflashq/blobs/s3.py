"""S3 as a store of whole objects: put if absent, plain put, get, head, list, delete."""

from __future__ import annotations

import logging
import random
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError
from pydantic import SecretStr

from dflashq.config import Settings
from dflashq.core import metrics, schema
from dflashq.core.errors import BlobError, BlobMissingError

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S, READ_TIMEOUT_S, MAX_TRIES = 5.0, 60.0, 5
_CONFLICT_TRIES, _CONFLICT_PAUSE_S = 8, 0.1
_RACERS = 16
_PRECONDITION_FAILED, _CONFLICT, _NOT_FOUND, _SERVER_ERROR = 412, 409, 404, 500

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Blob:
    """An object as read: its bytes, and its user metadata without the format version."""

    body: bytes = field(repr=False)
    metadata: dict[str, str]


def _revealed(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()


def make_client(settings: Settings) -> S3Client:
    """A client with the address, keys, timeouts and retries of the settings."""
    return boto3.session.Session().client(
        "s3",
        endpoint_url=settings.s3_endpoint_url,
        region_name=settings.s3_region,
        aws_access_key_id=_revealed(settings.s3_access_key_id),
        aws_secret_access_key=_revealed(settings.s3_secret_access_key),
        config=Config(
            s3={"addressing_style": "path"},
            connect_timeout=CONNECT_TIMEOUT_S,
            read_timeout=READ_TIMEOUT_S,
            retries={"mode": "standard", "total_max_attempts": MAX_TRIES},
            max_pool_connections=32,
            tcp_keepalive=True,
        ),
    )


def _status(exc: ClientError) -> int:
    return int(exc.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


class Blobs:
    """The bucket and prefix of the settings. Every call blocks; safe from many threads.

    Keys are relative to the prefix. All methods raise BlobError when S3 refuses or does not
    answer after its retries; all but `put_absent` may be repeated without a second thought.

    Every object is written with the version of the stored formats in its user metadata, and `get`
    and `head` raise NewerFormatError for one of a newer version (`core.schema`).
    """

    def __init__(self, settings: Settings) -> None:
        self.bucket = settings.s3_bucket
        self.prefix = settings.s3_prefix.strip("/") + "/" if settings.s3_prefix.strip("/") else ""
        self._endpoint = settings.s3_endpoint_url or "AWS"
        self._client = make_client(settings)

    def __repr__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix} at {self._endpoint}"

    def put_absent(self, key: str, body: bytes, metadata: Mapping[str, str]) -> bool:
        """True when this call created the object, False when one exists.

        The existing one may be our own, whose reply was lost: compare the metadata.
        """
        for pause in self._pauses():
            try:
                self._put(key, body, metadata, IfNoneMatch="*")
            except ClientError as exc:
                if _status(exc) == _PRECONDITION_FAILED:
                    return False
                if _status(exc) != _CONFLICT:
                    self._raise("put", key, exc)
                # 409: another conditional write to this key is under way and has to end first.
                time.sleep(pause)
            except BotoCoreError as exc:
                self._raise("put", key, exc)
            else:
                return True
        metrics.S3_ERRORS.add(verb="put")
        raise BlobError(
            f"s3://{self.bucket}/{self.prefix}{key} was not written: other writers kept the key "
            f"busy (HTTP 409) over {_CONFLICT_TRIES} tries. It is safe to try again."
        )

    @staticmethod
    def _pauses() -> Iterator[float]:
        """Seconds between tries after a 409: they grow, and jitter keeps two writers apart."""
        for attempt in range(_CONFLICT_TRIES):
            yield random.uniform(0.5, 1.5) * _CONFLICT_PAUSE_S * 2**attempt

    def put(self, key: str, body: bytes, metadata: Mapping[str, str] | None = None) -> None:
        """Write the object; an existing one is replaced."""
        self._call("put", key, partial(self._put, key, body, metadata or {}))

    def _put(self, key: str, body: bytes, metadata: Mapping[str, str], **condition: Any) -> None:
        # The CRC lets S3 refuse a body that was damaged on its way.
        self._client.put_object(
            Bucket=self.bucket,
            Key=self.prefix + key,
            Body=body,
            Metadata={**metadata, schema.METADATA_KEY: str(schema.VERSION)},
            ChecksumAlgorithm="CRC32",
            **condition,
        )

    def get(self, key: str) -> Blob:
        """The whole object; BlobMissingError when it is absent, NewerFormatError."""
        return self._call("get", key, partial(self._get, key))

    def _get(self, key: str) -> Blob:
        response = self._client.get_object(Bucket=self.bucket, Key=self.prefix + key)
        with response["Body"] as stream:
            metadata = self._checked_metadata(key, response["Metadata"])
            return Blob(stream.read(), metadata)

    def head(self, key: str) -> dict[str, str] | None:
        """The object's metadata, or None when it is absent; NewerFormatError."""
        read = partial(self._client.head_object, Bucket=self.bucket, Key=self.prefix + key)
        try:
            return self._checked_metadata(key, self._call("head", key, read)["Metadata"])
        except BlobMissingError:
            return None

    def _checked_metadata(self, key: str, metadata: Mapping[str, str]) -> dict[str, str]:
        """The metadata without the format version, which must not be newer than ours."""
        own = dict(metadata)
        version = own.pop(schema.METADATA_KEY, None)
        schema.refuse_newer(version, f"s3://{self.bucket}/{self.prefix}{key}")
        return own

    def list(self, prefix: str) -> Iterator[str]:
        """All keys under `prefix` in S3's order, relative to the settings' prefix; lazy."""
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self.bucket, Prefix=self.prefix + prefix
        )
        iterator = iter(pages)
        while page := self._call("list", prefix, lambda: next(iterator, None)):
            for entry in page.get("Contents", []):
                yield entry["Key"].removeprefix(self.prefix)

    def delete(self, key: str) -> None:
        """Remove the object; an absent one is no error."""
        remove = partial(self._client.delete_object, Bucket=self.bucket, Key=self.prefix + key)
        self._call("delete", key, remove)

    def check_conditional_put(self, prefix: str) -> None:
        """BlobError when racing conditional puts to one key do not have exactly one winner.

        Writes one probe object under `prefix` and removes it. Blocks; safe to repeat.
        """
        key = f"{prefix}probe-{secrets.token_hex(8)}"
        bodies = [f"racer {number}".encode() for number in range(_RACERS)]
        try:
            with ThreadPoolExecutor(_RACERS) as pool:
                won = list(pool.map(lambda body: self.put_absent(key, body, {}), bodies))
            stored = self.get(key).body
        finally:
            self.delete(key)
        if won.count(True) != 1 or stored != bodies[won.index(True)]:
            raise BlobError(
                f"{self!r} does not honour If-None-Match: of {_RACERS} racing writers, it answered "
                f"{won.count(True)} that they created the object. Two workers could overwrite each "
                "other's batch there, so nothing was started. Use an S3 with conditional writes "
                "(AWS S3, SeaweedFS 4.48 or later)."
            )

    def _call(self, verb: str, key: str, call: Callable[[], Result]) -> Result:
        try:
            return call()
        except (ClientError, BotoCoreError) as exc:
            self._raise(verb, key, exc)

    def _raise(self, verb: str, key: str, exc: ClientError | BotoCoreError) -> NoReturn:
        """BlobError for `exc` without it as cause: botocore errors may quote request headers."""
        place = f"s3://{self.bucket}/{self.prefix}{key}"
        if isinstance(exc, ClientError):
            code = exc.response.get("Error", {}).get("Code", "unknown")
            if _status(exc) == _NOT_FOUND and code in {"404", "NoSuchKey", "NotFound"}:
                raise BlobMissingError(f"{place} does not exist ({verb}).") from None
        metrics.S3_ERRORS.add(verb=verb)
        if isinstance(exc, ClientError):
            raise BlobError(
                f"S3 refused to {verb} {place}: {code}. {_advice(code)}",
                transient=_status(exc) >= _SERVER_ERROR,
            ) from None
        if isinstance(exc, NoCredentialsError):
            raise BlobError(f"cannot {verb} {place}: no credentials. {_CREDENTIALS}") from None
        raise BlobError(
            f"cannot {verb} {place}: {type(exc).__name__} at {self._endpoint}. It may "
            "have been done; it is safe to try again. Check DFLASHQ_S3_ENDPOINT_URL and that S3 is "
            "up.",
            transient=True,
        ) from None


_CREDENTIALS = "Check DFLASHQ_S3_ACCESS_KEY_ID and DFLASHQ_S3_SECRET_ACCESS_KEY."


def _advice(code: str) -> str:
    """What a person can do about an S3 error code."""
    if code in {"AccessDenied", "403", "InvalidAccessKeyId", "SignatureDoesNotMatch"}:
        return _CREDENTIALS
    if code == "NoSuchBucket":
        return "Create the bucket or set DFLASHQ_S3_BUCKET."
    return "Nothing was written. Try again; if it happens again, look at the log of S3."
