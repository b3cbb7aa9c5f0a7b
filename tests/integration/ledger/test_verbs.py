"""Each verb of the ledger on a real server: results, repeats, fences, a full and a lossy Redis."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from pydantic import SecretStr

from dflashq.config import Settings
from dflashq.core import keys
from dflashq.core.errors import (
    LeaseLostError,
    LedgerError,
    LedgerPasswordError,
    LedgerRefusedError,
    LedgerUnreachableError,
    UnknownRunError,
)
from dflashq.core.model import Verdict
from dflashq.core.stage_spec import ROWS
from dflashq.embedded.redis import EmbeddedRedis
from dflashq.ledger import Ledger, scripts
from dflashq.ledger.kept_codec import strike_entry, verdict_entry
from dflashq.ledger.scripts import run_keys
from dflashq.system.ports import free_port
from tests.integration.ledger.scenarios import SCENARIOS, Scenario
from tests.support.ledger_fixture import B1, B2, TTL_S, LedgerFixture, boot, entries, ref
from tests.support.tcp_proxy import TcpProxy


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_scenario(settings: Settings, scenario: Scenario) -> None:
    scenario(LedgerFixture(settings))


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis(tmp_path / "own", free_port(), "own-password") as server:
        yield server


@pytest.fixture
def own(settings: Settings, own_redis: EmbeddedRedis) -> LedgerFixture:
    """A bench on a server of its own, which the test may fill, stop or reconfigure."""
    return LedgerFixture(
        settings.model_copy(
            update={"redis_url": own_redis.url, "redis_password": SecretStr("own-password")}
        )
    )


# --- a full Redis


def _fill(own: LedgerFixture) -> None:
    used = own.raw.info("memory")["used_memory"]
    own.raw.config_set("maxmemory", used + 64 * 1024)
    for number in range(10_000):
        try:
            own.raw.set(f"filler:{number}", "x" * 1024)
        except redis.OutOfMemoryError:
            return
    raise AssertionError("10 MB fit into 64 KB")


def test_a_full_redis_cannot_lock_itself(own: LedgerFixture) -> None:
    batches = [f"batch-{number:06d}" for number in range(8)]
    own.start(*batches)
    begun, failing, killed, drained, silent = (own.lease(b) for b in batches[:5])
    orphan = own.lease(batches[5], boot=boot().text)
    assert own.ledger.keep(begun, entries(0))
    own.silence(silent.batch)
    own.silence(orphan.batch)
    own.raw.script_flush()
    _fill(own)

    assert own.ledger.keep(begun, entries(1)) is False
    assert own.ledger.renew(own.run, [begun], TTL_S) == ("active", [True])
    assert set(own.ledger.kept(begun).verdicts) == {0}
    assert own.ledger.fail(failing, "broken") == "pending"
    assert own.ledger.kill(killed, "conflict")
    assert own.ledger.release(drained, "drain")
    assert own.ledger.disown(own.run, boot(2)) == [orphan.batch]
    assert own.ledger.expire(own.run) == [(silent.batch, "pending")]
    name = "gpu0@a"
    assert own.ledger.announce(name, {"boot": boot(name=name).text})
    assert own.ledger.renew_name(name, boot(name=name).text)
    assert own.ledger.retire(name, boot(name=name).text)
    # A fleet that starts anew on a full Redis can still work it empty.
    assert own.ledger.release(begun, "drain")
    again = own.lease(begun.batch, "w2")
    assert set(own.ledger.kept(again).verdicts) == {0}
    assert own.ledger.complete(again, ref(again.batch), {"accepted": 1}) == "done"
    assert own.ledger.set_state(own.run, "paused", "full") == "paused"
    assert own.ledger.sweep_lock(5) is True
    with pytest.raises(LedgerRefusedError, match=r"refuses \(OOM .*writing a probe"):
        own.ledger.check()
    # A worker that cannot be told of must not be taken for dead.
    own.ledger.announce("w1", {"state": "generating"})
    assert own.ledger.workers()["w1"]["silent_s"] < 60
    with pytest.raises(LedgerError, match="maxmemory"):
        own.ledger.add(own.run, ["batch-000099"])

    own.raw.config_set("maxmemory", "512mb")
    own.ledger.set_state(own.run, "active", "")
    assert own.ledger.keep(own.lease(drained.batch), entries(1)) is True


# --- what is on disk


def test_a_repeated_keep_waits_for_the_disk_too(own: LedgerFixture) -> None:
    """WAITAOF waits for the writes of its own connection: a repeat must be one."""
    own.start(B1)
    lease = own.lease()

    def offset() -> int:
        return int(own.raw.info("replication")["master_repl_offset"])

    assert own.ledger.keep(lease, entries(0))
    before = offset()
    assert own.ledger.keep(lease, entries(0))
    assert offset() > before


def test_kept_work_survives_a_crash_of_redis(own: LedgerFixture, own_redis: EmbeddedRedis) -> None:
    own.start(B1)
    lease = own.lease()
    own.raw.config_set("appendfsync", "everysec")
    assert own.ledger.keep(lease, entries(0, 1, 2))
    own_redis.kill()
    with pytest.raises(LedgerUnreachableError, match="tried again"):
        own.ledger.keep(lease, entries(3))
    own_redis.start()
    assert set(own.ledger.kept(lease).verdicts) == {0, 1, 2}
    assert own.ledger.renew(own.run, [lease], TTL_S) == ("active", [True])
    assert own.ledger.keep(lease, entries(3))


def test_keep_is_not_acknowledged_before_it_is_on_disk(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = LedgerFixture(settings).start(B1)
    lease = bench.lease()
    real = bench.ledger._redis.pipeline

    def never_synced(**options: Any) -> Any:
        pipe = real(**options)
        execute = pipe.execute
        monkeypatch.setattr(pipe, "execute", lambda: [execute()[0], [0, 0]])
        return pipe

    monkeypatch.setattr(bench.ledger._redis, "pipeline", never_synced)
    with pytest.raises(LedgerUnreachableError, match="not on disk"):
        bench.ledger.keep(lease, entries(0))


def test_check_refuses_a_redis_without_aof(own: LedgerFixture) -> None:
    assert own.ledger.check().count(".") == 2
    own.raw.config_set("appendonly", "no")
    with pytest.raises(LedgerError, match=r"does not write to disk .*--appendonly yes"):
        own.ledger.check()
    lenient = Ledger(own.settings.model_copy(update={"keep_fsync": False}))
    assert lenient.check().count(".") == 2
    own.start(B1)
    lease = own.lease()
    assert lenient.keep(lease, entries(0))
    with pytest.raises(LedgerError, match="WAITAOF"):
        own.ledger.keep(lease, entries(1))


# --- a Redis that forgets, refuses or loses replies


def test_scripts_that_redis_forgot_are_loaded_again(settings: Settings) -> None:
    bench = LedgerFixture(settings).start(B1)
    bench.raw.script_flush()
    lease = bench.lease()
    bench.raw.script_flush()
    assert bench.ledger.keep(lease, entries(0))
    bench.raw.script_flush()
    assert bench.ledger.complete(lease, ref(B1), {}) == "done"


@pytest.mark.parametrize("where", ["setting", "url", "query"])
def test_a_wrong_password_is_told_without_it(
    settings: Settings, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    secret = "hunter2-secret"
    server = settings.redis_url.removeprefix("redis://")
    update: dict[str, Any] = {
        "setting": {"redis_password": SecretStr(secret)},
        "url": {"redis_url": f"redis://:{secret}@{server}", "redis_password": None},
        "query": {"redis_url": f"redis://{server}?password={secret}", "redis_password": None},
    }[where]
    ledger = Ledger(settings.model_copy(update=update))
    with pytest.raises(LedgerPasswordError, match="DFLASHQ_REDIS_PASSWORD") as caught:
        ledger.claim("run", B1, "w1", TTL_S)
    assert secret not in str(caught.value) + caplog.text
    assert server.partition("/")[0] in str(caught.value)


@pytest.fixture
def lossy(settings: Settings) -> Iterator[tuple[LedgerFixture, TcpProxy]]:
    server, _, database = settings.redis_url.removeprefix("redis://").partition("/")
    host, _, port = server.partition(":")
    with TcpProxy(host, int(port)) as proxy:
        bench = LedgerFixture(settings).start(B1, B2)
        url = f"redis://127.0.0.1:{proxy.port}/{database}"
        bench.ledger = Ledger(settings.model_copy(update={"redis_url": url}))
        yield bench, proxy


def test_a_lost_reply_changes_no_outcome(lossy: tuple[LedgerFixture, TcpProxy]) -> None:
    bench, proxy = lossy

    def lose(script: str) -> None:
        bench.raw.script_load(scripts.source(script))
        proxy.lose_reply_to(scripts.sha1(script).encode())

    lose("claim")
    lease = bench.lease(begin=False)
    assert lease.batch == B1
    assert bench.states() == {B1: "leased", B2: "pending"}
    lose("begin")
    assert bench.ledger.begin(lease) == 1
    lose("keep")
    assert bench.ledger.keep(lease, entries(0))
    assert bench.raw.hlen(bench.key(f"kept:{B1}")) == 3
    lose("renew")
    assert bench.ledger.renew(bench.run, [lease], TTL_S) == ("active", [True])
    lose("complete")
    assert bench.ledger.complete(lease, ref(B1), {"accepted": 2}) == "already"
    assert bench.ledger.status(bench.run).counters == {"accepted": 2}
    assert bench.states() == {B1: "done", B2: "pending"}

    for verb, state in (("release", "pending"), ("fail", "pending"), ("kill", "dead")):
        held = bench.lease(B2)
        lose(verb)
        getattr(bench.ledger, verb)(held, "once")
        assert bench.states()[B2] == state
    told = [row["what"] for row in bench.ledger.story(bench.run, B2)]
    assert told == ["once"] * 3
    lose("revive")
    bench.ledger.revive(bench.run, "asked")
    assert bench.states()[B2] == "pending"
    assert proxy.lost == 9


# --- what is known


def test_an_unknown_run_is_told(settings: Settings) -> None:
    bench = LedgerFixture(settings)
    with pytest.raises(UnknownRunError, match="dflashq status"):
        bench.ledger.status(bench.run)


def test_a_wiped_ledger_refuses_its_old_leases(settings: Settings) -> None:
    bench = LedgerFixture(settings).start(B1)
    lease = bench.lease()
    bench.raw.flushdb()
    assert bench.ledger.renew(bench.run, [lease], TTL_S) == ("unknown", [False])
    with pytest.raises(LeaseLostError, match="not ours any more"):
        bench.ledger.keep(lease, entries(0))
    assert bench.picture() == {}
    bench.start(B1)
    assert bench.lease().fence != lease.fence


def test_a_run_is_not_finished_before_its_batches_came(settings: Settings) -> None:
    bench = LedgerFixture(settings)
    bench.ledger.register(bench.run, "f" * 64, "q", 20, 2)
    assert not bench.ledger.status(bench.run).finished
    bench.ledger.add(bench.run, [B1])
    bench.ledger.complete(bench.lease(), ref(B1), {})
    assert not bench.ledger.status(bench.run).finished
    bench.ledger.add(bench.run, [B2])
    bench.ledger.kill(bench.lease(), "conflict")
    assert bench.ledger.status(bench.run).finished


def test_a_rejection_is_kept_with_its_reason(settings: Settings) -> None:
    bench = LedgerFixture(settings).start(B1)
    lease = bench.lease()
    verdict = Verdict("looping", "the same 40 tokens 12 times: “é”")
    assert bench.ledger.keep(lease, [verdict_entry(3, verdict)])
    assert bench.ledger.kept(lease).verdicts == {3: verdict}


def test_strikes_are_kept_as_the_highest_number(settings: Settings) -> None:
    bench = LedgerFixture(settings).start(B1)
    lease = bench.lease()
    for index, number in ((3, 1), (3, 2), (4, 1), (3, 1)):
        assert bench.ledger.keep(lease, [strike_entry(index, number)])
    assert bench.ledger.kept(lease).strikes == {3: 2, 4: 1}


def test_one_sweeps_at_a_time(settings: Settings) -> None:
    one, two = Ledger(settings), Ledger(settings)
    assert [one.sweep_lock(60), two.sweep_lock(60), one.sweep_lock(60)] == [True, False, False]


def test_workers_announce_and_retire(settings: Settings) -> None:
    ledger = Ledger(settings)
    ledger.announce("gpu0@a", {"state": "generating"})
    ledger.announce("gpu1@a", {"state": "draining"})
    known = ledger.workers()
    assert known["gpu0@a"]["state"] == "generating"
    assert known["gpu0@a"]["silent_s"] < 60
    ledger.retire("gpu0@a")
    assert set(ledger.workers()) == {"gpu1@a"}


# --- stages


def test_the_names_of_generate_are_what_they_were() -> None:
    parts = ["run", "pending", "leased", "leases", "attempts", "done", "dead", "story", "counters"]
    assert run_keys("r", "generate") == tuple(f"dflashq:{{r}}:{part}" for part in parts)
    assert run_keys("r", "rows") == tuple(f"dflashq:{{r}}:rows:{part}" for part in parts)
    assert keys.stage_runs("generate") == "dflashq:runs"


def test_stages_of_one_run_do_not_touch_each_other(settings: Settings) -> None:
    bench = LedgerFixture(settings).start(B1, B2)
    ledger, run = bench.ledger, bench.run
    first = bench.lease(B1)
    assert ledger.add_ready(run, ROWS) == 0
    ledger.register(run, "f" * 64, ROWS.queue, 10, 2, stage=ROWS.name)
    assert ledger.keep(first, entries(1))
    ledger.complete(first, ref(B1), {"accepted": 1})
    assert [ledger.add_ready(run, ROWS), ledger.add_ready(run, ROWS)] == [1, 0]
    before = bench.picture()
    lease = ledger.claim(run, "", "rows@h", TTL_S, stage=ROWS.name).lease
    assert lease is not None
    assert (lease.batch, lease.stage) == (B1, ROWS.name)
    assert ledger.begin(lease) == 1
    assert ledger.keep(lease, [("x", b"1")])
    assert ledger.kept_entries(lease) == {"x": b"1"}
    assert ledger.renew(run, [lease], TTL_S) == ("active", [True])
    ledger.set_state(run, "paused", "")
    assert ledger.state(run, ROWS.name) == "active"
    ledger.set_state(run, "active", "")
    generates = {name: row for name, row in bench.picture().items() if ":rows:" not in name}
    assert generates == {name: row for name, row in before.items() if ":rows:" not in name}
    bench.raw.zadd(keys.ledger_key(run, "leased", ROWS.name), {B1: 1})
    assert ledger.expire(run) == []
    assert ledger.expire(run, ROWS.name) == [(B1, "pending")]
    assert ledger.status(run).stages[ROWS.name].pending == 1
