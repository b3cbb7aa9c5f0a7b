"""Liveness by tokens: what hangs is restarted, what is slow or calls itself ill is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import requests

from tests.support.supervised_engine import Supervised, profile_in, until
from tests.support.wait import WAIT_S


def test_an_engine_that_hangs_is_replaced(tmp_path: Path, tiny_model: Path) -> None:
    """It answers /health all the while, and its process lives."""
    profile = profile_in(tmp_path, tiny_model, lengths="fixed:50", token_ms=5)
    with Supervised(tmp_path, profile) as engine:
        assert engine.ask(10, 11).result().status_code == 200
        engine.set_faults(hang=True)
        answers = [engine.ask(20, n) for n in range(3)]
        until(lambda: len(engine.ready) == 2, "another engine is ready")
        assert "the engine hangs: no token has moved for" in engine.down[0]
        assert "while 3 requests were in flight" in engine.down[0]
        assert engine.ready[0] != engine.ready[1]
        for answer in answers:
            with pytest.raises(requests.ConnectionError):
                answer.result()
        assert engine.ask(20, 0).result().status_code == 200
        assert len(engine.down) == 1


def test_an_idle_engine_that_hangs_is_not_noticed_before_it_is_asked(
    tmp_path: Path, tiny_model: Path
) -> None:
    profile = profile_in(tmp_path, tiny_model, lengths="fixed:50", token_ms=5)
    with Supervised(tmp_path, profile) as engine:
        engine.set_faults(hang=True)
        looks = len(engine.stats)
        until(lambda: len(engine.stats) > looks + 20, "it is looked at for two stall times")
        assert engine.down == []


def test_slow_is_not_dead(tmp_path: Path, tiny_model: Path) -> None:
    """A token every 0.6 s, called stalled after 1 s without one."""
    profile = profile_in(tmp_path, tiny_model, lengths="fixed:1000", token_ms=5)
    with Supervised(tmp_path, profile) as engine:
        engine.set_faults(slow=120.0)
        looks = len(engine.stats)
        slow = engine.ask(10, 11)
        until(lambda: len(engine.stats) > looks + 20, "it is looked at for two stall times")
        assert not slow.done()
        engine.set_faults(slow=1.0)
        assert slow.result().status_code == 200
        assert engine.down == []


def test_ill_health_is_no_illness(tmp_path: Path, tiny_model: Path) -> None:
    """SGLang answers /health with 503 while it prefills something long."""
    profile = profile_in(tmp_path, tiny_model, lengths="fixed:300", token_ms=10)
    with Supervised(tmp_path, profile) as engine:
        engine.set_faults(health_503=True)
        assert requests.get(f"{engine.ready[0]}/health", timeout=WAIT_S).status_code == 503
        assert engine.ask(10, 11).result().status_code == 200
        assert engine.down == []


def test_an_engine_whose_metrics_are_gone_is_replaced(tmp_path: Path, tiny_model: Path) -> None:
    profile = profile_in(tmp_path, tiny_model)
    with Supervised(tmp_path, profile) as engine:
        until(lambda: bool(engine.stats), "its metrics were seen")
        engine.set_faults(no_metrics=True)
        until(lambda: len(engine.ready) == 2, "another engine is ready")
        assert "its metrics have not been readable for" in engine.down[0]


def test_an_engine_that_never_had_metrics_is_left_alone(
    tmp_path: Path, tiny_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    profile = profile_in(
        tmp_path, tiny_model, faults={"no_metrics": True}, lengths="fixed:20", token_ms=100
    )
    with Supervised(tmp_path, profile) as engine:
        assert engine.ask(10, 11).result().status_code == 200  # takes two stall times
        assert engine.down == []
        assert engine.stats == []
    assert caplog.text.count("--enable-metrics") == 1


def test_metrics_are_passed_on(tmp_path: Path, tiny_model: Path) -> None:
    profile = profile_in(tmp_path, tiny_model, slots=2, lengths="fixed:200", token_ms=10)
    with Supervised(tmp_path, profile) as engine:
        answers = [engine.ask(10, n) for n in range(5)]
        until(lambda: any(v.queued == 3 for v in engine.stats), "three are queued")
        stats = next(v for v in engine.stats if v.queued == 3)
        assert (stats.running, stats.kv_use, stats.state_use) == (2, 1.0, 1.0)
        assert stats.row()["accept_length"] == 3.2
        engine.set_faults(retracted=4)
        until(lambda: engine.stats[-1].retracted == 4, "retractions are seen")
        for answer in answers:
            answer.result()
        until(lambda: engine.stats[-1].queued_ever >= 5, "queue times are counted")
        assert engine.stats[-1].queue_s > 1
