"""The heartbeat: it renews, tells each loss once, and outlives Redis outages and broken callers."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pydantic import SecretStr

from dflashq.config import Settings
from dflashq.embedded.redis import EmbeddedRedis
from dflashq.ledger import LeaseHeartbeat
from dflashq.system.ports import free_port
from tests.support.ledger_fixture import B1, B2, LedgerFixture, boot, entries
from tests.support.wait import WAIT_S, wait_until

TTL_S = 3.0  # a beat every second


@contextmanager
def keeping(bench: LedgerFixture, ttl_s: float = TTL_S) -> Iterator[LeaseHeartbeat]:
    heartbeat = LeaseHeartbeat(bench.ledger, ttl_s)
    heartbeat.start()
    try:
        yield heartbeat
    finally:
        heartbeat.stop()


def test_it_renews_until_the_lease_is_dropped(settings: Settings) -> None:
    bench = LedgerFixture(settings).start(B1)
    lease, lost = bench.lease(), queue.Queue[str]()
    with keeping(bench) as heartbeat:
        heartbeat.hold(lease, lost.put)
        bench.silence(B1)
        wait_until(lambda: bench.end_of(B1) > 1)
        first = bench.end_of(B1)
        wait_until(lambda: bench.end_of(B1) > first)
        assert bench.ledger.expire(bench.run) == []
        assert heartbeat.held() == [lease]
        answered = heartbeat.last_answer
        wait_until(lambda: heartbeat.last_answer > answered)
        heartbeat.drop(lease)
        wait_until(lambda: bench.ledger.expire(bench.run) == [(B1, "pending")])
    assert lost.empty()


def test_a_name_is_renewed_with_and_without_leases(settings: Settings) -> None:
    """Whatever the worker's other threads are busy with, its name must not look free."""
    ledger = LedgerFixture(settings).ledger
    mine = boot(name="gpu0@h")
    ledger.announce(mine.name, {"boot": mine.text})
    heartbeat = LeaseHeartbeat(ledger, TTL_S, lambda: ledger.renew_name(mine.name, mine.text))
    heartbeat.start()
    try:
        for _ in range(2):
            before = (ledger.worker(mine.name) or {})["seen_ms"]
            wait_until(lambda before=before: (ledger.worker(mine.name) or {})["seen_ms"] > before)  # type: ignore[misc]
    finally:
        heartbeat.stop()


def test_each_loss_is_told_once_with_its_reason(settings: Settings) -> None:
    one, two = LedgerFixture(settings).start(B1, B2), LedgerFixture(settings).start(B1)
    lost = queue.Queue[tuple[str, str]]()
    fenced, kept, other = one.lease(B1), one.lease(B2), two.lease(B1)
    with keeping(one) as heartbeat:
        for lease in (fenced, kept, other):
            heartbeat.hold(lease, lambda why, lease=lease: lost.put((lease.fence, why)))
        one.ledger.disown(one.run, boot(9, name="nobody"))
        one.ledger.release(fenced, "taken away")
        assert lost.get(timeout=WAIT_S) == (fenced.fence, "fenced")
        two.ledger.set_state(two.run, "cancelled", "asked")
        assert lost.get(timeout=WAIT_S) == (other.fence, "cancelled")
        one.ledger.set_state(one.run, "paused", "breaker")
        assert lost.get(timeout=WAIT_S) == (kept.fence, "paused")
        assert heartbeat.held() == []
    assert lost.empty()


def test_a_wiped_ledger_is_told_as_unknown(settings: Settings) -> None:
    bench = LedgerFixture(settings).start(B1)
    lost = queue.Queue[str]()
    with keeping(bench) as heartbeat:
        heartbeat.hold(bench.lease(), lost.put)
        bench.raw.flushdb()
        assert lost.get(timeout=WAIT_S) == "unknown"
        assert heartbeat.held() == []


def test_a_dropped_lease_is_never_told(settings: Settings) -> None:
    bench = LedgerFixture(settings).start(B1, B2)
    told = queue.Queue[str]()
    dropped, held = bench.lease(B1), bench.lease(B2)
    with keeping(bench) as heartbeat:
        heartbeat.hold(dropped, told.put)
        heartbeat.drop(dropped)
        heartbeat.hold(held, told.put)
        bench.ledger.release(dropped, "drain")
        bench.ledger.release(held, "drain")
        assert told.get(timeout=WAIT_S) == "fenced"
    assert told.empty()


def test_a_callback_that_raises_ends_no_other_lease(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    bench = LedgerFixture(settings).start(B1, B2)
    told = queue.Queue[str]()

    def broken(why: str) -> None:
        raise RuntimeError(f"the loop is closed ({why})")

    first, second = bench.lease(B1), bench.lease(B2)
    with keeping(bench) as heartbeat:
        bench.ledger.release(first, "taken away")
        bench.ledger.release(second, "taken away")
        with caplog.at_level(logging.ERROR):
            heartbeat.hold(first, broken)
            heartbeat.hold(second, told.put)
            assert told.get(timeout=WAIT_S) == "fenced"
        assert heartbeat.held() == []
        again = bench.lease(B1)
        bench.silence(B1)
        heartbeat.hold(again, told.put)
        wait_until(lambda: bench.end_of(B1) > 1)
    assert "the loop is closed (fenced)" in caplog.text


def test_a_callback_may_use_the_keeper(settings: Settings) -> None:
    bench = LedgerFixture(settings).start(B1)
    lease, done = bench.lease(), threading.Event()
    with keeping(bench) as heartbeat:

        def lost(_why: str) -> None:
            heartbeat.drop(lease)
            assert heartbeat.held() == []
            done.set()

        heartbeat.hold(lease, lost)
        bench.ledger.release(lease, "taken away")
        assert done.wait(WAIT_S)


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_restart_of_redis_loses_no_lease(
    settings: Settings, tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "dflashq.ledger.heartbeat")
    with EmbeddedRedis(tmp_path / "own", free_port(), "keeper-password") as server:
        bench = LedgerFixture(
            settings.model_copy(
                update={"redis_url": server.url, "redis_password": SecretStr("keeper-password")}
            )
        ).start(B1)
        lease, lost = bench.lease(), queue.Queue[str]()
        assert bench.ledger.keep(lease, entries(0))
        with keeping(bench) as heartbeat:
            heartbeat.hold(lease, lost.put)
            wait_until(lambda: bench.end_of(B1) < _server_ms(bench) + 1000 * TTL_S + 1)
            getattr(server, how)()
            wait_until(lambda: "heartbeat failed" in caplog.text)
            last = heartbeat.last_answer
            wait_until(lambda: time.monotonic() > last + 2 * TTL_S)  # the lease is past its end
            server.start()
            wait_until(lambda: heartbeat.last_answer > last)
            assert bench.ledger.expire(bench.run) == []
            assert heartbeat.held() == [lease]
            assert bench.ledger.keep(lease, entries(1))
            assert set(bench.ledger.kept(lease).verdicts) == {0, 1}
            assert lost.empty()
        assert "keeper-password" not in caplog.text


def _server_ms(bench: LedgerFixture) -> float:
    seconds, micros = bench.raw.time()
    return float(seconds * 1000 + micros / 1000)
