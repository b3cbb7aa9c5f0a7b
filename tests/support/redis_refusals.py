"""A real Redis that answers and refuses, for as long as a block lasts."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import redis

from dflashq.embedded.redis import EmbeddedRedis
from dflashq.system.ports import free_port
from tests.conftest import REDIS_PASSWORD
from tests.support.wait import wait_until

Refusal = Callable[[EmbeddedRedis], AbstractContextManager[None]]


def _throw_out(client: redis.Redis) -> None:
    """Everybody but this client loses its connection and must come in anew."""
    for kind in ("normal", "pubsub"):
        client.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")


@contextlib.contextmanager
def noreplicas(server: EmbeddedRedis) -> Iterator[None]:
    """It misses a replica that must have each write."""
    with server.client() as client:
        client.config_set("min-replicas-to-write", 1)
        try:
            yield
        finally:
            client.config_set("min-replicas-to-write", 0)


@contextlib.contextmanager
def readonly(server: EmbeddedRedis) -> Iterator[None]:
    """It is the replica of a master that is not there."""
    with server.client() as client:
        client.execute_command("REPLICAOF", "127.0.0.1", free_port())
        try:
            yield
        finally:
            client.execute_command("REPLICAOF", "NO", "ONE")


@contextlib.contextmanager
def misconf(server: EmbeddedRedis) -> Iterator[None]:
    """It cannot save: a folder lies where its snapshot should."""
    blocked = server.folder / "dump.rdb" / "in-the-way"
    blocked.mkdir(parents=True)
    with server.client() as client:
        client.config_set("save", "3600 1")
        client.bgsave()
        wait_until(lambda: _last_save(client) == "err", "the save has failed")
        try:
            yield
        finally:
            blocked.rmdir()
            blocked.parent.rmdir()
            client.config_set("stop-writes-on-bgsave-error", "no")
            client.bgsave()
            wait_until(lambda: _last_save(client) == "ok", "the save has worked")
            client.config_set("stop-writes-on-bgsave-error", "yes")
            client.config_set("save", "")


def _last_save(client: redis.Redis) -> str:
    return str(client.info("persistence")["rdb_last_bgsave_status"])


@contextlib.contextmanager
def busy(server: EmbeddedRedis) -> Iterator[None]:
    """Somebody's script does not end."""

    def turn() -> None:
        with server.client() as client, contextlib.suppress(redis.RedisError):
            client.eval("while true do end", 0)

    with server.client() as client:
        client.config_set("busy-reply-threshold", 50)
        script = threading.Thread(target=turn)
        script.start()
        try:
            yield
        finally:
            client.script_kill()
            script.join()


@contextlib.contextmanager
def maxclients(server: EmbeddedRedis) -> Iterator[None]:
    """Somebody else has all connections."""
    with server.client() as client:
        allowed = client.config_get("maxclients")["maxclients"]
        client.config_set("maxclients", 1)
        _throw_out(client)
        try:
            yield
        finally:
            client.config_set("maxclients", allowed)


@contextlib.contextmanager
def rotated(server: EmbeddedRedis) -> Iterator[None]:
    """Its password is another one than the workers have."""
    with server.client() as client:
        client.config_set("requirepass", "another password")
        _throw_out(client)
        try:
            yield
        finally:
            client.config_set("requirepass", REDIS_PASSWORD)


@contextlib.contextmanager
def full(server: EmbeddedRedis) -> Iterator[None]:
    """Its memory is used up, by one value that its log does not hold."""
    with server.client() as client:
        size = int(client.config_get("maxmemory")["maxmemory"])
        client.setrange("filler", size - 1, b"x")
        try:
            yield
        finally:
            client.delete("filler")


REFUSALS: dict[str, Refusal] = {
    "NOREPLICAS": noreplicas,
    "MISCONF": misconf,
    "READONLY": readonly,
    "BUSY": busy,
    "max number of clients": maxclients,
    "WRONGPASS": rotated,
}
