"""The Redis client: explicit time-outs, a short retry, errors in our own words."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis
from redis.backoff import ExponentialWithJitterBackoff
from redis.retry import Retry

from dflashq.config import Settings
from dflashq.core import metrics
from dflashq.core.errors import (
    LedgerError,
    LedgerPasswordError,
    LedgerRefusedError,
    LedgerUnreachableError,
)
from dflashq.ledger.outage import UNREACHABLE, outage_of
from dflashq.ledger.refusal import PASSWORD, Need, Refusal, refusal_of
from dflashq.system.limits import exhausted

# A short retry only: whoever can wait longer does so above, with its own stop condition.
RETRIES = 2
# How Celery spreads one queue over Redis lists by priority; stated, since hints are counted.
PRIORITY_STEPS = (0, 3, 6, 9)
SEPARATOR = "\x06\x16"
TRANSPORT = (redis.ConnectionError, redis.TimeoutError, redis.BusyLoadingError)


def connect(settings: Settings) -> Any:
    """A client for many threads; it connects on first use.

    Any, since redis-py types every answer as text or bytes, blocking or not, at once.
    """
    return redis.Redis.from_url(
        settings.broker_url(),
        socket_timeout=10,
        socket_connect_timeout=3,
        socket_keepalive=True,
        health_check_interval=10,
        retry=Retry(ExponentialWithJitterBackoff(cap=1.0, base=0.1), RETRIES),
        retry_on_error=list(TRANSPORT),
        client_name="dflashq",
    )


def address(settings: Settings) -> str:
    """The Redis address for messages: no credentials, wherever the URL carries them."""
    return settings.redis_url.rpartition("@")[2].partition("?")[0]


def out_of_memory(exc: BaseException) -> bool:
    """Whether Redis refused a write because it is full."""
    return isinstance(exc.__cause__, redis.OutOfMemoryError)


@contextmanager
def translated(
    address: str, doing: str, need: Need = Need.ANSWER, *, remedy: str = ""
) -> Iterator[None]:
    """Redis errors in our own words, no secrets in them; every outage is told once.

    LedgerUnreachableError, and under it LedgerRefusedError for refusals that pass: try again.
    LedgerError for what waiting cannot mend. `need` is what the calls ask of Redis; `remedy` says
    what becomes of them.
    """
    asked, outage = time.monotonic(), outage_of(address)
    try:
        with _wrapped():
            yield
    except redis.RedisError as exc:
        refusal = refusal_of(exc)
        if refusal is None and isinstance(exc, TRANSPORT):
            metrics.REDIS_ERRORS.add(kind="unreachable")
            outage.failed(UNREACHABLE, str(exc), Need.ANSWER)
            raise LedgerUnreachableError(
                f"Redis at {address} did not answer while {doing} ({exc}); "
                + (remedy or "nothing is lost, it can be tried again")
                + ": see that Redis is up and DFLASHQ_REDIS_URL right."
            ) from exc
        metrics.REDIS_ERRORS.add(kind="refused")
        if refusal is None or not refusal.passes:
            words = str(exc) if refusal is None else refusal.words
            raise LedgerError(f"Redis at {address} failed while {doing}: {words}") from exc
        outage.failed(refusal.code, refusal.words, refusal.need)
        raise _refused(address, doing, refusal, remedy) from exc
    else:
        outage.served(need, asked)


def _refused(address: str, doing: str, refusal: Refusal, remedy: str) -> LedgerRefusedError:
    words = refusal.words.rstrip(".")
    if refusal.code in PASSWORD:
        return LedgerPasswordError(
            f"Redis at {address} refused the password ({words}) while {doing}: "
            "set DFLASHQ_REDIS_PASSWORD.",
            refusal.words,
        )
    return LedgerRefusedError(
        f"Redis at {address} refuses ({words}) while {doing}; "
        + (remedy or "nothing is lost, it can be tried again once Redis takes it")
        + ".",
        refusal.words,
    )


@contextmanager
def _wrapped() -> Iterator[None]:
    """The client opens files of its own for a new connection; out of descriptors, that fails raw.

    It means the same as a connection that cannot be made.
    """
    try:
        yield
    except OSError as exc:
        if not exhausted(exc):
            raise
        raise redis.ConnectionError(str(exc)) from exc


def broker_options() -> dict[str, Any]:
    """Celery's `broker_transport_options`, the same for workers and for whoever sends hints.

    Only the milliseconds from receiving a hint to its acknowledgement lie under the visibility
    timeout; the short restore interval brings back hints that died within them.
    """
    return {
        "priority_steps": list(PRIORITY_STEPS),
        "sep": SEPARATOR,
        "visibility_timeout": 120,
        "unacked_restore_interval": 5,
        "unacked_restore_throttle": 1,
        "unacked_mutex_expire": 10,
        "socket_timeout": 10,
        "socket_connect_timeout": 3,
        "socket_keepalive": True,
        "health_check_interval": 10,
    }
