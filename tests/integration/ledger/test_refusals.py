"""Every refusal of Redis by its code: which ones pass, what is said of them, how often."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from pydantic import SecretStr

from dflashq.config import Settings
from dflashq.core import metrics
from dflashq.core.errors import (
    DflashqError,
    LedgerError,
    LedgerPasswordError,
    LedgerRefusedError,
    LedgerUnreachableError,
)
from dflashq.embedded.redis import EmbeddedRedis
from dflashq.ledger import Hints, Lease, Ledger, connection
from dflashq.ledger.alert_log import AlertLog
from dflashq.ledger.connection import translated
from dflashq.ledger.monitor_store import MonitorStore
from dflashq.ledger.outage import UNREACHABLE, Outage
from dflashq.ledger.refusal import Need, refusal_of
from dflashq.ledger.server import check_anew
from dflashq.system.ports import free_port
from tests.support.ledger_fixture import B1, LedgerFixture, entries, ref
from tests.support.refusing_redis import RefusingRedis

PASSES = {
    "BUSY": "BUSY Redis is busy running a script. You can only call SCRIPT KILL.",
    "CLUSTERDOWN": "CLUSTERDOWN The cluster is down",
    "KILLED": "ERR Error running script: Script killed by user with SCRIPT KILL.",
    "LOADING": "LOADING Redis is loading the dataset in memory",
    "MASTERDOWN": "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is 'no'.",
    "MAXCLIENTS": "ERR max number of clients + cluster connections reached",
    "MISCONF": "MISCONF Errors writing to the AOF file: No space left on device",
    "NOREPLICAS": "NOREPLICAS Not enough good replicas to write.",
    "OOM": "OOM command not allowed when used memory > 'maxmemory'.",
    "READONLY": "READONLY You can't write against a read only replica.",
    "SCRIPT": "ERR Error running script (call to f_0): @user_script:1: -MISCONF No space left",
    "TRYAGAIN": "TRYAGAIN Multiple keys request during rehashing of slot",
    "UNBLOCKED": "UNBLOCKED force unblock from blocking operation, instance state changed",
}
PASSWORDS = {
    "NOAUTH": "NOAUTH Authentication required.",
    "WRONGPASS": "WRONGPASS invalid username-password pair or user is disabled.",
    "invalid": "ERR invalid password",
}
STAYS = {
    "WRONGTYPE": "WRONGTYPE Operation against a key holding the wrong kind of value",
    "ERR": "ERR unknown command 'EVALSHA'",
    "NOPERM": "NOPERM User default has no permissions to run the 'evalsha' command",
    "MOVED": "MOVED 3999 127.0.0.1:6381",
}
LEASE = Lease("run", B1, "1-ab", "w1", 0)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pause between the tries of a client."""
    monkeypatch.setattr(connection, "RETRIES", 0)


def settings_of(settings: Settings, server: RefusingRedis) -> Settings:
    return settings.model_copy(update={"redis_url": server.url, "redis_password": None})


def calls(settings: Settings) -> dict[str, Callable[[], object]]:
    """Everything that asks Redis, in each of the ways in which it is asked."""
    ledger, hints = Ledger(settings), Hints(settings)
    return {
        "a script": lambda: ledger.claim("run", B1, "w1", 30),
        "a script and the disk": lambda: ledger.keep(LEASE, entries(0)),
        "a command": lambda: ledger.state("run"),
        "a transaction": lambda: ledger.status("run"),
        "the probe": ledger.check,
        "a new connection": lambda: check_anew(settings),
        "an announcement": lambda: ledger.announce("w1", {}),
        "a hint": lambda: hints.publish("q", "run", [B1]),
        "counting hints": lambda: hints.waiting("q"),
        "a notice": lambda: AlertLog(settings).try_lock(1),
        "the monitor": lambda: MonitorStore(settings).lead(1),
    }


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("greets", [True, False], ids=["inside", "at the door"])
@pytest.mark.parametrize("code", [*PASSES, *PASSWORDS])
def test_a_refusal_that_passes_is_an_outage(settings: Settings, code: str, *, greets: bool) -> None:
    sentence = (PASSES | PASSWORDS)[code]
    with RefusingRedis(sentence, greets=greets) as server:
        for how, call in calls(settings_of(settings, server)).items():
            if code == "OOM" and how == "a script and the disk":
                assert call() is False
                continue
            before = metrics.REDIS_ERRORS.counts().get(("refused",), 0)
            with pytest.raises(LedgerRefusedError) as caught:
                call()
            assert sentence.removeprefix("ERR ").rstrip(".") in caught.value.words, how
            assert sentence.removeprefix("ERR ").rstrip(".") in str(caught.value), how
            assert isinstance(caught.value, LedgerPasswordError) == (code in PASSWORDS), how
            assert metrics.REDIS_ERRORS.counts()["refused",] > before, how


@pytest.mark.parametrize("code", STAYS)
def test_what_waiting_cannot_mend_is_no_outage(
    settings: Settings, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    with RefusingRedis(STAYS[code]) as server:
        for how, call in calls(settings_of(settings, server)).items():
            with pytest.raises(DflashqError) as caught:
                call()
            assert isinstance(caught.value, LedgerError), how
            assert not isinstance(caught.value, LedgerUnreachableError), how
    assert "Redis refuses" not in caplog.text


def test_what_a_pipeline_quotes_is_not_told() -> None:
    """It quotes the arguments of the command that failed, which are prompts and answers."""
    exc = redis.ResponseError(
        "Command # 1 (EVALSHA 0 a secret answer) of pipeline caused error: MISCONF no space left"
    )
    refusal = refusal_of(exc)
    assert refusal is not None
    assert (refusal.code, refusal.words) == ("MISCONF", "MISCONF no space left")
    with pytest.raises(LedgerRefusedError) as caught, translated("nowhere:1", "keeping"):
        raise exc
    assert "secret" not in str(caught.value)


# --- told once


@pytest.fixture
def outage(caplog: pytest.LogCaptureFixture) -> Outage:
    caplog.set_level(logging.INFO, "dflashq.ledger.outage")
    return Outage("10.0.0.1:6379")


class Hands:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    made = Hands()
    monkeypatch.setattr("dflashq.ledger.outage.time.monotonic", made)
    return made


def test_an_outage_is_told_once_and_its_end_with_what_it_took(
    outage: Outage, hands: Hands, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(30):
        outage.failed("READONLY", PASSES["READONLY"], Need.WRITE)
        outage.served(Need.ANSWER, hands.now)
        hands.now += 1.0
    assert [r.levelname for r in caplog.records] == ["ERROR"]
    assert "READONLY You can't write" in caplog.text
    assert outage.codes == ("READONLY",)
    outage.served(Need.ANSWER, hands.now)
    hands.now += 60.0
    outage.served(Need.ANSWER, hands.now)
    assert outage.codes == ("READONLY",), "that reads are answered says nothing of writes"
    outage.served(Need.WRITE, hands.now)
    assert outage.codes == ()
    assert [r.levelname for r in caplog.records] == ["ERROR", "INFO"]
    assert "after_s=90.0" in caplog.text


def test_an_outage_that_comes_and_goes_is_one(
    outage: Outage, hands: Hands, caplog: pytest.LogCaptureFixture
) -> None:
    """Connections that are open are served while new ones are refused."""
    for _ in range(30):
        outage.failed("WRONGPASS", PASSWORDS["WRONGPASS"], Need.ANSWER)
        outage.served(Need.ROOM, hands.now)
        hands.now += 1.0
        outage.served(Need.ROOM, hands.now)
    assert len(caplog.records) == 1
    hands.now += 60.0
    outage.served(Need.ROOM, hands.now)
    assert "after_s=29.0" in caplog.text, "it was over with the first call that was served"


def test_an_answer_to_what_was_asked_before_the_outage_does_not_end_it(
    outage: Outage, hands: Hands
) -> None:
    asked = hands.now
    hands.now += 1.0
    outage.failed(UNREACHABLE, "timed out", Need.ANSWER)
    hands.now += 60.0
    outage.served(Need.ROOM, asked)
    assert outage.codes == (UNREACHABLE,)


def test_each_kind_of_one_outage_is_told(
    outage: Outage, hands: Hands, caplog: pytest.LogCaptureFixture
) -> None:
    """A Redis that is restarted is away, loads, and is full again."""
    for _ in range(2):
        outage.failed(UNREACHABLE, "refused", Need.ANSWER)
        outage.failed("LOADING", PASSES["LOADING"], Need.ANSWER)
        outage.failed("OOM", PASSES["OOM"], Need.ROOM)
    assert [r.levelname for r in caplog.records] == ["ERROR"] * 3
    assert outage.full
    hands.now += 60.0
    outage.served(Need.WRITE, hands.now)
    assert outage.full, "a full Redis takes the writes that make room"
    outage.served(Need.ROOM, hands.now)
    assert not outage.full


# --- on a real server


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis(tmp_path / "own", free_port(), "own-password") as server:
        yield server


def test_a_replica_reads_and_refuses_until_it_is_a_master_again(
    settings: Settings, own_redis: EmbeddedRedis
) -> None:
    own = settings.model_copy(
        update={"redis_url": own_redis.url, "redis_password": SecretStr("own-password")}
    )
    bench, hints = LedgerFixture(own).start(B1), Hints(own)
    lease = bench.lease()
    bench.raw.execute_command("REPLICAOF", "127.0.0.1", free_port())
    for write in (
        lambda: bench.ledger.renew(bench.run, [lease], 30),
        lambda: bench.ledger.keep(lease, entries(0)),
        lambda: bench.ledger.complete(lease, ref(B1), {}),
        lambda: bench.ledger.set_state(bench.run, "paused", ""),
        lambda: bench.ledger.announce("w1", {}),
        lambda: hints.publish("q", bench.run, [B1]),
        bench.ledger.check,
    ):
        with pytest.raises(LedgerRefusedError, match="READONLY"):
            write()
    assert bench.ledger.status(bench.run).state == "active"
    assert bench.ledger.runs() == {bench.run: "q"}
    assert bench.ledger.outage.codes == ("READONLY",)
    bench.raw.execute_command("REPLICAOF", "NO", "ONE")
    assert bench.ledger.keep(lease, entries(0))
    hints.publish("q", bench.run, [B1])
    assert hints.waiting("q") == 1
