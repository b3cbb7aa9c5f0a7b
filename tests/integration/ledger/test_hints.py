"""Hints on a real server: counted over all priorities, urgent first, and never missed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kombu
import pytest
from pydantic import SecretStr

from dflashq.config import Settings
from dflashq.core.errors import LedgerUnreachableError
from dflashq.core.stage_spec import GENERATE
from dflashq.embedded.redis import EmbeddedRedis
from dflashq.ledger import Hints
from dflashq.ledger.connection import broker_options
from dflashq.system.ports import free_port
from tests.support.ledger_fixture import B1, B2, B3, LedgerFixture

QUEUE = "generate.tiny"
PASSWORD = "hints-password"


def _receive(settings: Settings, queue: str) -> list[kombu.Message]:
    """What a worker receives, in the order it does, acknowledged as it comes."""
    got: list[kombu.Message] = []
    url = settings.broker_url()
    with kombu.Connection(url, transport_options=broker_options()) as connection:
        simple = connection.SimpleQueue(queue)
        while True:
            try:
                message = simple.get(timeout=0.2)
            except simple.Empty:
                break
            message.ack()
            got.append(message)
        simple.close()
    return got


def _named(messages: list[Any]) -> list[list[str]]:
    return [message.payload[0] for message in messages]


def test_hints_are_counted_and_urgent_ones_overtake(settings: Settings) -> None:
    hints = Hints(settings)
    assert hints.waiting(QUEUE) == 0
    hints.publish(QUEUE, "run", [B1, B2])
    hints.publish(QUEUE, "run", [B3], urgent=True)
    hints.publish("generate.other", "run", [B1])
    assert hints.waiting(QUEUE) == 3
    assert hints.waiting("generate.other") == 1

    messages = _receive(settings, QUEUE)
    assert _named(messages) == [["run", B3], ["run", B1], ["run", B2]]
    assert {message.headers["task"] for message in messages} == {GENERATE.task}
    assert hints.waiting(QUEUE) == 0
    assert hints.waiting("generate.other") == 1


def test_no_batches_no_hints(settings: Settings) -> None:
    hints = Hints(settings)
    hints.publish(QUEUE, "run", [])
    assert hints.waiting(QUEUE) == 0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis(tmp_path / "own", free_port(), PASSWORD) as server:
        yield server


def test_publishing_into_an_outage_fails_and_loses_nothing(
    settings: Settings, server: EmbeddedRedis
) -> None:
    own = settings.model_copy(
        update={"redis_url": server.url, "redis_password": SecretStr(PASSWORD)}
    )
    bench, hints = LedgerFixture(own).start(B1, B2), Hints(own)
    hints.publish(QUEUE, bench.run, [B1])
    server.stop()

    with pytest.raises(LedgerUnreachableError, match="outbox") as caught:
        hints.publish(QUEUE, bench.run, [B2])
    assert PASSWORD not in str(caught.value)
    with pytest.raises(LedgerUnreachableError, match="counting the hints"):
        hints.waiting(QUEUE)

    server.start()
    assert bench.ledger.pending(bench.run) == [B1, B2]
    assert hints.waiting(QUEUE) == 1
    # The same client publishes again once Redis is back.
    hints.publish(QUEUE, bench.run, [B2])
    assert _named(_receive(own, QUEUE)) == [[bench.run, B1], [bench.run, B2]]


def test_a_full_redis_takes_no_hints_and_says_so(settings: Settings, server: EmbeddedRedis) -> None:
    own = settings.model_copy(
        update={"redis_url": server.url, "redis_password": SecretStr(PASSWORD)}
    )
    hints = Hints(own)
    with server.client() as client:
        client.config_set("maxmemory", "1mb")
    with pytest.raises(LedgerUnreachableError, match=r"maxmemory.*outbox"):
        hints.publish(QUEUE, "run", [B1])
    assert hints.waiting(QUEUE) == 0
