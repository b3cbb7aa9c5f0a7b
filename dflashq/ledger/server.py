"""Whether a Redis can carry runs: found out by writing to it for real."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from typing import Any

from dflashq.config import Settings
from dflashq.core import keys
from dflashq.core.errors import LedgerError, LedgerRefusedError, LedgerUnreachableError
from dflashq.ledger.connection import address, connect, translated
from dflashq.ledger.outage import Outage, outage_of
from dflashq.ledger.refusal import Need, passes


class ServerQueries(ABC):
    """The ledger's questions about the server that carries it; each blocks on Redis."""

    _redis: Any
    _settings: Settings
    _address: str

    def memory(self) -> tuple[int, int]:
        """(used, maximum) bytes of Redis; maximum 0 when it is not limited."""
        with self._translated("reading its memory"):
            row = self._redis.info("memory")
        return int(row["used_memory"]), int(row.get("maxmemory", 0))

    def now_s(self) -> float:
        """The server's clock, the only one that leases know: seconds since 1970."""
        seconds, micros = self._time()
        return seconds + micros / 1e6

    def check(self) -> str:
        """Write and read for real; returns the server's version. For `doctor` and boot."""
        return check(self._redis, self._settings)

    def refusal(self) -> str:
        """What Redis says to a write now; empty when it takes it, or may not be asked. Blocks."""
        return refusal(self._redis, self._settings)

    @property
    def outage(self) -> Outage:
        """Whether Redis refuses something or is away, as this process met it. Does not block."""
        return outage_of(self._address)

    def _time(self) -> tuple[int, int]:
        with self._translated("reading the time"):
            seconds, micros = self._redis.time()
        return int(seconds), int(micros)

    @abstractmethod
    def _translated(self, doing: str) -> Any: ...


def check(client: Any, settings: Settings) -> str:
    """Write a probe, see it on disk and remove it; returns the server's version. Blocks.

    LedgerUnreachableError for what may pass, a disk that is too slow now among it; LedgerError for
    a server that must be set up otherwise.
    """
    where, probe = address(settings), _name()
    with translated(where, "writing a probe", Need.ROOM):
        pipe = client.pipeline(transaction=False)
        pipe.set(probe, "1", px=60_000)
        pipe.execute_command("WAITAOF", 1, 0, 5000)
        pipe.delete(probe)
        written, synced, _ = pipe.execute(raise_on_error=False)
        about = client.info("server")
        if isinstance(written, Exception):
            raise written
        if settings.keep_fsync and isinstance(synced, Exception) and passes(synced):
            raise synced
    if settings.keep_fsync and isinstance(synced, Exception):
        raise LedgerError(
            f"Redis at {where} does not write to disk ({synced}): start it with "
            "--appendonly yes (Redis 7.2 or Valkey), or set DFLASHQ_KEEP_FSYNC=false and "
            "accept that a restart of Redis regenerates unfinished batches."
        )
    if settings.keep_fsync and not synced[0]:
        raise LedgerUnreachableError(
            f"Redis at {where} did not bring a probe to disk within 5 s: see how busy its disk is."
        )
    return str(about.get("valkey_version") or about["redis_version"])


def refusal(client: Any, settings: Settings) -> str:
    """What Redis says to a write, where it refuses one for a while; else empty. Blocks."""
    try:
        with translated(address(settings), "trying a write", Need.WRITE):
            client.delete(_name())  # a write that a full server takes
    except LedgerRefusedError as exc:
        return exc.words or str(exc)
    except LedgerError:
        return ""  # a reader's account, or no answer: whoever reads next says so
    return ""


def check_anew(settings: Settings) -> None:
    """Write through a connection of its own: whoever connects now can write. Blocks.

    LedgerError as for `check`.
    """
    with (
        translated(address(settings), "connecting and writing", Need.ROOM),
        connect(settings) as client,
    ):
        client.set(_name(), "1", px=1000)


def _name() -> str:
    return f"{keys.NAMESPACE}:probe:{secrets.token_hex(4)}"
