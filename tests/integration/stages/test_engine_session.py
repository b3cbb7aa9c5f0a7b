"""The station: what the engine's metrics say decides how many generations are in flight."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dflashq.core.errors import EngineError
from dflashq.engine import concurrency_limit
from dflashq.engine.chat_renderer import ChatRenderer
from dflashq.engine.dialects.openai import OpenAIClient
from dflashq.engine.dialects.sglang import SGLangClient
from dflashq.engine.profiles import Profile
from dflashq.engine.stats import EngineStats
from dflashq.ledger import Lease
from dflashq.stages.attempt import Attempt
from dflashq.stages.engine_session import EngineSession
from dflashq.stages.event_loop import EventLoopThread
from dflashq.stages.keep_writer import KeepWriter
from tests.support.supervised_engine import until

INFO = {"max_running_requests": 64, "served_model_name": "tiny", "api_key": "k3y"}


class NoLedger:
    """Nothing is kept in these tests."""

    def begin(self, lease: Lease) -> int:
        return 1


@pytest.fixture
def stations(tiny_model: Path) -> Iterator[Any]:
    made: list[EngineSession] = []

    def make(**launch: Any) -> EngineSession:
        model = {"id": "tiny", "path": str(tiny_model)}
        profile = Profile.model_validate({"name": "tiny", "model": model, "launch": launch})
        keeping = KeepWriter(NoLedger())  # type: ignore[arg-type]
        made.append(EngineSession(profile, ChatRenderer(tiny_model), EventLoopThread(), keeping))
        return made[-1]

    yield make
    for session in made:
        session.close()


def test_retractions_lower_the_gate_and_calm_raises_it(
    stations: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dflashq.stages.engine_session")
    monkeypatch.setattr(concurrency_limit, "CALM_S", 0.0)
    session = stations()
    session.engine_vitals(EngineStats(retracted=9))  # before any engine was ready
    session.engine_ready("http://127.0.0.1:9", INFO)
    assert session.gate.limit == 80
    session.engine_vitals(EngineStats(retracted=9))
    assert session.gate.limit == 80
    session.engine_vitals(EngineStats(retracted=12, queued=30))
    until(lambda: session.gate.limit == 72, "a tenth less is in flight")
    assert session.stats.queued == 30
    assert "72 generations in flight from now on: 3 requests were retracted" in caplog.text
    session.engine_vitals(EngineStats(retracted=12))
    until(lambda: session.gate.limit == 73, "one more is in flight")


def test_another_engine_begins_anew(stations: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrency_limit, "CALM_S", 0.0)
    session = stations()
    session.engine_ready("http://127.0.0.1:9", INFO)
    for count in (0, 5, 9):
        session.engine_vitals(EngineStats(retracted=count))
    until(lambda: session.gate.limit == 64, "twice a tenth less")
    session.engine_down("it died")
    assert session.stats is None
    session.engine_ready("http://127.0.0.1:10", INFO)
    assert session.gate.limit == 80
    assert session.client.base_url == "http://127.0.0.1:10"
    assert "k3y" not in str(session.engine_records)


def test_the_client_speaks_the_profiles_dialect(stations: Any) -> None:
    native, chat = stations(), stations(kind="external", dialect="openai", url="http://far")
    for session in (native, chat):
        session.engine_ready("http://127.0.0.1:9", INFO)
    assert type(native.client) is SGLangClient
    assert type(chat.client) is OpenAIClient
    assert chat.client.model == "tiny"


def test_an_engine_that_tells_no_limit_is_an_error(stations: Any) -> None:
    with pytest.raises(EngineError, match=r"set limit in its \[concurrency\]"):
        stations().engine_ready("http://127.0.0.1:9", {"served_model_name": "tiny"})


def test_whatever_goes_wrong_at_the_admission_gives_the_slot_back(stations: Any) -> None:
    """A slot that is lost narrows the gate for good, and nobody sees why."""
    session = stations()
    session.engine_ready("http://127.0.0.1:9", INFO)
    attempt = Attempt(Lease("run", "batch-000000", "1-a", "w", 0), 0.0)

    def broken(lease: Lease) -> bool:
        raise RuntimeError(lease.batch)

    session.is_lease_current = broken
    with pytest.raises(RuntimeError, match="batch-000000"):
        session.loop.run(session.admit(attempt, alone=True))
    assert session.gate.in_flight == 0
    session.is_lease_current = lambda lease: True
    session.loop.run(session.admit(attempt))
    assert session.gate.in_flight == 1
    session.gate.leave()
