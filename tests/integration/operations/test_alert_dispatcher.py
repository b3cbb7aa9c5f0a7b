"""Notices: each is told once, by whichever process; signed; retried; no secret in any message."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from dflashq.config import Settings
from dflashq.core import alerts, keys
from dflashq.core.model import ObjectRef
from dflashq.ledger import Ledger
from dflashq.ledger.alert_log import MINE, TAKEN, TOLD, AlertLog
from dflashq.operations.alerts.dispatcher import TRIES, AlertDispatcher
from tests.support.wait import wait_until
from tests.support.webhook_receiver import WebhookReceiver

SECRET = "the-webhook-secret"


def with_sinks(
    settings: Settings, receiver: WebhookReceiver | None = None, file: str = ""
) -> Settings:
    url = None if receiver is None else SecretStr(receiver.url)
    return settings.model_copy(
        update={
            "webhook_url": url,
            "webhook_secret": SecretStr(SECRET),
            "notify_file": file,
            "sweep_s": 0.002,
        }
    )


@contextmanager
def dispatcher(settings: Settings) -> Iterator[AlertDispatcher]:
    made = AlertDispatcher(settings, Ledger(settings), pause_s=0.02)
    yield made
    made.stop()


def check(*notifiers: AlertDispatcher) -> None:
    """One look of each, past the lock that spares the others the same look."""
    for one in notifiers:
        redis = one._alert_log._redis
        wait_until(lambda redis=redis: not redis.exists(keys.NOTICES_LOCK))  # type: ignore[misc]
        one.check()


@pytest.fixture
def ledger(settings: Settings) -> Ledger:
    made = Ledger(settings)
    made.register("r", "f" * 64, "generate.m", 20, 2)
    made.add("r", ["batch-000000", "batch-000001"])
    return made


def kill(ledger: Ledger, batch: str, reason: str = "it failed") -> None:
    lease = ledger.claim("r", batch, "w0", 30).lease
    assert lease is not None
    assert ledger.kill(lease, reason)


def finish(ledger: Ledger, batch: str) -> None:
    lease = ledger.claim("r", batch, "w0", 30).lease
    assert lease is not None
    counts = {"prompts": 10, "accepted": 9, "rejected_stub": 1}
    ledger.complete(lease, ObjectRef(batch, "0" * 64, "f" * 64, counts), counts)


def events(receiver: WebhookReceiver) -> list[str]:
    return [got.row["event"] for got in receiver.requests]


def test_a_paused_run_is_told_once_and_again_after_it_went_on(
    settings: Settings, ledger: Ledger
) -> None:
    with WebhookReceiver() as receiver, dispatcher(with_sinks(settings, receiver)) as one:
        check(one)
        ledger.set_state("r", "paused", "31 % were rejected")
        check(one, one, one)
        wait_until(lambda: len(receiver.requests) == 1)
        assert receiver.requests[0].row["sentence"] == "run r is paused: 31 % were rejected"
        ledger.set_state("r", "active", "")
        check(one)
        ledger.set_state("r", "paused", "31 % were rejected")
        check(one)
        wait_until(lambda: len(receiver.requests) == 2)
    assert events(receiver) == ["run_paused", "run_paused"]


def test_many_processes_tell_each_thing_once(settings: Settings, ledger: Ledger) -> None:
    kill(ledger, "batch-000000", "its attempts are spent")
    finish(ledger, "batch-000001")
    with WebhookReceiver() as receiver:
        mine = with_sinks(settings, receiver)
        crowd = [AlertDispatcher(mine, Ledger(mine), pause_s=0.02) for _ in range(8)]
        threads = [threading.Thread(target=check, args=(one, one)) for one in crowd]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        check(*crowd)
        for one in crowd:
            one.stop()
    assert sorted(events(receiver)) == ["batch_dead", "run_finished"]
    rows = {got.row["event"]: got.row for got in receiver.requests}
    assert rows["batch_dead"]["batch"] == "batch-000000"
    assert rows["batch_dead"]["reason"] == "its attempts are spent"
    finished = rows["run_finished"]
    assert (finished["accepted"], finished["rejected"], finished["dead"]) == (9, 1, 1)
    assert finished["text"].startswith("dflashq: run r is finished: 1 of 2 batches done")


def test_a_batch_that_dies_again_after_a_revival_is_told_again(
    settings: Settings, ledger: Ledger
) -> None:
    with WebhookReceiver() as receiver, dispatcher(with_sinks(settings, receiver)) as one:
        for expected in (1, 2):
            kill(ledger, "batch-000000")
            check(one, one)
            wait_until(lambda n=expected: len(receiver.requests) == n)  # type: ignore[misc]
            ledger.revive("r", "again")
            check(one)
    assert events(receiver) == ["batch_dead", "batch_dead"]


def test_a_notice_is_signed_and_can_be_told_from_an_old_one(settings: Settings) -> None:
    with WebhookReceiver() as receiver, dispatcher(with_sinks(settings, receiver)) as one:
        before = int(time.time())
        one.dispatch(alerts.engine_failed("gpu0@h", "it died 6 times", "h:42:a"))
        wait_until(lambda: len(receiver.requests) == 1)
        after = time.time()
    [got] = receiver.requests
    stamp = got.headers["X-Dflashq-Timestamp"]
    signed = stamp.encode() + b"." + got.body
    digest = hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()
    assert got.headers["X-Dflashq-Signature"] == f"sha256={digest}"
    assert before <= int(stamp) <= after
    assert got.headers["X-Dflashq-Event"] == got.row["event"] == "engine_lost"
    assert got.headers["X-Dflashq-Id"] == got.row["id"]
    assert got.row["worker"] == "gpu0@h"


def test_a_failing_receiver_is_tried_again_with_the_same_id(settings: Settings) -> None:
    with (
        WebhookReceiver(503, 429, 500) as receiver,
        dispatcher(with_sinks(settings, receiver)) as one,
    ):
        one.dispatch(alerts.engine_failed("gpu0@h", "it died", "h:42:a"))
        wait_until(lambda: len(receiver.requests) == 4)
    assert len({got.row["id"] for got in receiver.requests}) == 1


def test_what_did_not_arrive_is_told_later(settings: Settings, ledger: Ledger) -> None:
    """The receiver is down for longer than all tries; the next look tells it then."""
    kill(ledger, "batch-000000")
    with (
        WebhookReceiver(*[503] * TRIES) as receiver,
        dispatcher(with_sinks(settings, receiver)) as one,
    ):
        check(one)
        wait_until(lambda: len(receiver.requests) == TRIES)
        wait_until(lambda: (check(one), len(receiver.requests) == TRIES + 1)[1])
        check(one, one)
    assert len(receiver.requests) == TRIES + 1


def test_a_refusal_is_final_and_tells_no_secret(
    settings: Settings, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    kill(ledger, "batch-000000")
    with (
        caplog.at_level(logging.INFO),
        WebhookReceiver(404) as receiver,
        dispatcher(with_sinks(settings, receiver)) as one,
    ):
        check(one)
        wait_until(lambda: "did not arrive" in caplog.text)
        check(one, one)
    assert len(receiver.requests) == 1
    assert "HTTP 404" in caplog.text
    assert "batch-000000 is dead" in caplog.text
    assert "secret" not in caplog.text


def test_nobody_answers_and_the_address_stays_secret(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    away = with_sinks(settings).model_copy(
        update={"webhook_url": SecretStr("http://127.0.0.1:1/hook/secret-path")}
    )
    with caplog.at_level(logging.INFO), dispatcher(away) as one:
        one.dispatch(alerts.engine_failed("w", "it died", "h:1:a"))
        wait_until(lambda: "did not arrive" in caplog.text)
    assert "no answer (ConnectionError)" in caplog.text
    assert "secret-path" not in caplog.text


def test_a_file_gets_the_same_as_lines(settings: Settings, ledger: Ledger, tmp_path: Path) -> None:
    path = tmp_path / "new" / "notices.jsonl"
    ledger.set_state("r", "paused", "somebody looks")
    with dispatcher(with_sinks(settings, file=str(path))) as one:
        check(one, one)
        wait_until(path.exists)
    rows: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["event"] for row in rows] == ["run_paused"]


def test_stdout_is_a_sink(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    with dispatcher(with_sinks(settings, file="-")) as one:
        one.dispatch(alerts.engine_failed("w", "it died", "h:1:a"))
    assert json.loads(capsys.readouterr().out)["event"] == "engine_lost"


def test_a_silent_worker_is_a_lost_engine(settings: Settings, ledger: Ledger) -> None:
    ledger.announce("w0", {"host": "h", "boot": "h:7:a", "engine": "ready"})
    ledger.announce("w1", {"host": "h", "boot": "h:8:a", "engine": "ready"})
    row = json.loads(ledger._redis.hget("dflashq:workers", "w0"))
    row["seen_ms"] -= 90_000
    ledger._redis.hset("dflashq:workers", "w0", json.dumps(row))
    with WebhookReceiver() as receiver, dispatcher(with_sinks(settings, receiver)) as one:
        check(one, one)
        wait_until(lambda: len(receiver.requests) == 1)
    assert receiver.requests[0].row["worker"] == "w0"
    assert "has been silent for 9" in receiver.requests[0].row["sentence"]


def test_every_boot_that_falls_silent_is_told(settings: Settings, ledger: Ledger) -> None:
    """In containers, every start of a worker has the same name and the same process number."""
    with WebhookReceiver() as receiver, dispatcher(with_sinks(settings, receiver)) as one:
        for number, boot in enumerate(("host-1:5:a", "host-1:9:b", "host-2:5:c"), 1):
            row = {"host": "h", "pid": 1, "boot": boot, "engine": "ready"}
            seen = {"seen_ms": int((ledger.now_s() - 90) * 1000)}
            ledger._redis.hset("dflashq:workers", "w0", json.dumps(seen | row))
            check(one, one)
            wait_until(lambda n=number: len(receiver.requests) == n)  # type: ignore[misc]
    assert len({got.row["id"] for got in receiver.requests}) == 3


def test_a_sick_engine_is_told_once_an_episode(settings: Settings, ledger: Ledger) -> None:
    row = {"host": "h", "boot": "b1", "engine": "ready", "sick": "HTTP 500 only", "sick_since": 5}
    with WebhookReceiver() as receiver, dispatcher(with_sinks(settings, receiver)) as one:
        ledger.announce("w0", row)
        check(one, one)
        wait_until(lambda: len(receiver.requests) == 1)
        ledger.announce("w0", row | {"sick": "", "sick_since": 0})
        check(one)
        for since in (9, 9):
            ledger.announce("w0", row | {"sick_since": since})
            check(one, one)
        wait_until(lambda: len(receiver.requests) == 2)
        ledger.announce("w1", {"host": "h", "engine": "ready", "sick": "it says no more"})
        check(one)
        wait_until(lambda: len(receiver.requests) == 3)
    assert events(receiver) == ["engine_sick"] * 3
    told = receiver.requests[0].row
    assert (told["worker"], told["about"]) == ("w0", "w0")
    assert "the engine of worker w0 is sick: HTTP 500 only" in told["sentence"]


def test_without_sinks_nothing_is_looked_at(settings: Settings, ledger: Ledger) -> None:
    ledger.set_state("r", "paused", "")
    with dispatcher(settings) as one:
        check(one)
    assert AlertLog(settings).acquire("r", "webhook:paused") == MINE


def test_an_outage_of_redis_ends_no_clock(settings: Settings) -> None:
    away = with_sinks(settings, file="-").model_copy(update={"redis_url": "redis://127.0.0.1:1/0"})
    with dispatcher(away) as one:
        one.check()
        one.dispatch(alerts.engine_failed("w", "it died", "h:1:a"))


def test_the_ledger_gives_a_notice_to_one(settings: Settings) -> None:
    notices = AlertLog(settings)
    assert [notices.acquire("r", "n") for _ in range(3)] == [MINE, TAKEN, TAKEN]
    notices.release("r", "n")
    assert notices.acquire("r", "n") == MINE
    notices.mark_sent("r", "n", for_good=True)
    assert notices.acquire("r", "n") == TOLD
