"""The station: what the engine's metrics say decides how many generations are in flight."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dflashq.core.errors import EngineError
from dflashq.engine import admission
from dflashq.engine.metrics import Vitals
from dflashq.engine.openai import OpenAIClient
from dflashq.engine.profiles import Profile
from dflashq.engine.render import Renderer
from dflashq.engine.sglang import SGLangClient
from dflashq.ledger import Lease
from dflashq.stages.attempt import Attempt
from dflashq.stages.keeping import Keeping
from dflashq.stages.loop import LoopThread
from dflashq.stages.station import Station
from tests.engine.supervised import until

INFO = {"max_running_requests": 64, "served_model_name": "tiny", "api_key": "k3y"}


class NoLedger:
    """Nothing is kept in these tests."""

    def begin(self, lease: Lease) -> int:
        return 1


@pytest.fixture
def stations(tiny_model: Path) -> Iterator[Any]:
    made: list[Station] = []

    def make(**launch: Any) -> Station:
        model = {"id": "tiny", "path": str(tiny_model)}
        profile = Profile.model_validate({"name": "tiny", "model": model, "launch": launch})
        keeping = Keeping(NoLedger())  # type: ignore[arg-type]
        made.append(Station(profile, Renderer(tiny_model), LoopThread(), keeping))
        return made[-1]

    yield make
    for station in made:
        station.close()


def test_retractions_lower_the_gate_and_calm_raises_it(
    stations: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dflashq.stages.station")
    monkeypatch.setattr(admission, "CALM_S", 0.0)
    station = stations()
    station.engine_vitals(Vitals(retracted=9))  # before any engine was ready
    station.engine_ready("http://127.0.0.1:9", INFO)
    assert station.gate.limit == 80
    station.engine_vitals(Vitals(retracted=9))
    assert station.gate.limit == 80
    station.engine_vitals(Vitals(retracted=12, queued=30))
    until(lambda: station.gate.limit == 72, "a tenth less is in flight")
    assert station.vitals.queued == 30
    assert "72 generations in flight from now on: 3 requests were retracted" in caplog.text
    station.engine_vitals(Vitals(retracted=12))
    until(lambda: station.gate.limit == 73, "one more is in flight")


def test_another_engine_begins_anew(stations: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "CALM_S", 0.0)
    station = stations()
    station.engine_ready("http://127.0.0.1:9", INFO)
    for count in (0, 5, 9):
        station.engine_vitals(Vitals(retracted=count))
    until(lambda: station.gate.limit == 64, "twice a tenth less")
    station.engine_down("it died")
    assert station.vitals is None
    station.engine_ready("http://127.0.0.1:10", INFO)
    assert station.gate.limit == 80
    assert station.client.base_url == "http://127.0.0.1:10"
    assert "k3y" not in str(station.engine_records)


def test_the_client_speaks_the_profiles_dialect(stations: Any) -> None:
    native, chat = stations(), stations(kind="external", dialect="openai", url="http://far")
    for station in (native, chat):
        station.engine_ready("http://127.0.0.1:9", INFO)
    assert type(native.client) is SGLangClient
    assert type(chat.client) is OpenAIClient
    assert chat.client.model == "tiny"


def test_an_engine_that_tells_no_limit_is_an_error(stations: Any) -> None:
    with pytest.raises(EngineError, match=r"set limit in its \[concurrency\]"):
        stations().engine_ready("http://127.0.0.1:9", {"served_model_name": "tiny"})


def test_whatever_goes_wrong_at_the_admission_gives_the_slot_back(stations: Any) -> None:
    """A slot that is lost narrows the gate for good, and nobody sees why."""
    station = stations()
    station.engine_ready("http://127.0.0.1:9", INFO)
    attempt = Attempt(Lease("run", "batch-000000", "1-a", "w", 0), 0.0)

    def broken(lease: Lease) -> bool:
        raise RuntimeError(lease.batch)

    station.proven = broken
    with pytest.raises(RuntimeError, match="batch-000000"):
        station.loop.run(station.admit(attempt, alone=True))
    assert station.gate.in_flight == 0
    station.proven = lambda lease: True
    station.loop.run(station.admit(attempt))
    assert station.gate.in_flight == 1
    station.gate.leave()
