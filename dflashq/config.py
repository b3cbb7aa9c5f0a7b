"""Settings from `DFLASHQ_*` environment variables or a `.env` file; they never change."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, urlsplit, urlunsplit

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from dflashq.core.errors import ConfigError


def _xdg(variable: str, fallback: str) -> Path:
    return Path(os.environ.get(variable) or Path.home() / fallback) / "dflashq"


class Settings(BaseSettings):
    """All settings; the field descriptions are the table in docs/operating.md. Times in seconds."""

    model_config = SettingsConfigDict(
        env_prefix="DFLASHQ_", env_file=".env", extra="ignore", frozen=True
    )

    redis_url: str = Field("redis://127.0.0.1:6379/0", description="Redis or Valkey")
    redis_password: SecretStr | None = Field(None, description="password of Redis")
    s3_endpoint_url: str | None = Field(None, description="S3 endpoint; unset means AWS")
    s3_bucket: str = Field("dflashq", description="bucket; it must exist")
    s3_prefix: str = Field("", description="prefix before `runs/`")
    s3_region: str = Field("us-east-1", description="region")
    s3_access_key_id: SecretStr | None = Field(None, description="unset: boto3's own search")
    s3_secret_access_key: SecretStr | None = Field(None, description="unset: boto3's own search")
    profile: str = Field("", description="engine profile of this host's workers: name or file")
    gpu: str = Field("", description="GPU that the worker is pinned to: index or UUID")
    concurrency: int = Field(3, ge=1, le=64, description="batches that overlap on one worker")
    lease_ttl_s: float = Field(
        30.0, gt=0, description="a worker silent this long loses its batches"
    )
    sweep_s: float = Field(5.0, gt=0, description="pause between two sweeps of a worker")
    consumer_patience_s: float = Field(
        60.0, gt=0, description="a worker whose consumer takes no hint this long exits"
    )
    attempts: int = Field(5, ge=1, description="attempts before a batch is dead")
    drain_grace_s: float = Field(
        10.0, ge=0, description="how long in-flight generations may finish after SIGTERM"
    )
    keep_budget_mb: int = Field(256, ge=1, description="kept work in Redis at most, a run")
    keep_fsync: bool = Field(True, description="acknowledge kept work only when it is on disk")
    rows_at_once: bool = Field(
        False, description="a worker writes the training rows of each batch that it commits"
    )
    engine_restarts: int = Field(5, ge=0, description="engine restarts before the worker gives up")
    engine_python: str = Field("", description="python that has sglang; unset: the profile's own")
    engine_url: str = Field("", description="address of a server that someone else runs")
    engine_api_key: SecretStr | None = Field(None, description="its key; never logged or stored")
    model_path: str = Field("", description="model folder; unset: the profile's own")
    stage: bool = Field(False, description="`host up` keeps the weights in /dev/shm")
    log_format: Literal["console", "json"] = Field(
        "console", description="how a worker logs: `console` for people, `json` for machines"
    )
    metrics_port: int = Field(
        0,
        ge=0,
        le=65535,
        description="a worker's `/metrics`: this port plus its GPU index; 0: none",
    )
    metrics_host: str = Field("127.0.0.1", description="where a worker's `/metrics` listens")
    webhook_url: SecretStr | None = Field(None, description="gets a POST when a person is wanted")
    webhook_secret: SecretStr | None = Field(None, description="signs those, HMAC-SHA256")
    notify_file: str = Field("", description="the same as JSON lines in a file; `-` is stdout")
    monitor_token: SecretStr | None = Field(
        None, description="token of the monitor, or NAME:TOKEN pairs with commas between"
    )
    cache_dir: Path = Field(
        default_factory=lambda: _xdg("XDG_CACHE_HOME", ".cache"),
        description="engine environments and models",
    )
    lock_dir: Path = Field(
        default_factory=lambda: Path("/tmp/dflashq-locks"),  # noqa: S108
        description="host-wide GPU locks; the same folder for every worker of a host",
    )
    state_dir: Path = Field(
        default_factory=lambda: _xdg("XDG_STATE_HOME", ".local/state"),
        description="logs, locks, and the data of `dflashq local`",
    )

    def broker_url(self) -> str:
        """The Redis address with its password, for clients; it must not be printed or logged."""
        if self.redis_password is None:
            return self.redis_url
        parts = urlsplit(self.redis_url)
        secret = quote(self.redis_password.get_secret_value(), safe="")
        host = parts.netloc.rpartition("@")[2]
        return urlunsplit(parts._replace(netloc=f":{secret}@{host}"))


def load(**overrides: Any) -> Settings:
    """The settings of this process; ConfigError names each variable that is wrong."""
    try:
        return Settings(**overrides)
    except ValidationError as exc:
        problems = "; ".join(
            f"DFLASHQ_{'_'.join(map(str, error['loc'])).upper()}: {error['msg']}"
            for error in exc.errors()
        )
        raise ConfigError(
            f"settings are wrong: {problems}. See the table in docs/operating.md."
        ) from None
