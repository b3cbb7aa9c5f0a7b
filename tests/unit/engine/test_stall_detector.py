"""Alive means that tokens move. The test passes both the metrics and the time."""

from __future__ import annotations

from dflashq.engine.stall_detector import StallDetector
from dflashq.engine.stats import EngineStats

STALL_S = 300.0


def stats_of(tokens: float, running: int = 0, queued: int = 0, ended: float = 0) -> EngineStats:
    progress = {"sglang:realtime_tokens_total": tokens, "sglang:num_requests_total": ended}
    return EngineStats(running=running, queued=queued, progress=progress)


def test_requests_without_tokens_are_a_stall() -> None:
    detector = StallDetector(STALL_S)
    assert detector.stalled(0, stats_of(100), 8) is None
    assert detector.stalled(299, stats_of(100, running=5, queued=3), 8) is None
    reason = detector.stalled(300, stats_of(100, running=5, queued=3), 8)
    assert reason is not None
    assert "no token has moved for 300 s while 8 requests were in flight" in reason
    assert "5 running, 3 queued" in reason


def test_slow_is_not_dead() -> None:
    detector = StallDetector(STALL_S)
    for step in range(100):
        assert detector.stalled(step * 299.0, stats_of(step, running=1), 1) is None


def test_a_request_that_ends_is_progress_too() -> None:
    """SGLang counts the tokens of a short request only when it has ended."""
    detector = StallDetector(STALL_S)
    for step in range(10):
        assert detector.stalled(step * 200.0, stats_of(7, ended=step), 1) is None


def test_an_idle_engine_is_never_stalled() -> None:
    detector = StallDetector(STALL_S)
    # The gauge of an idle engine may be that of minutes ago: our own count decides.
    for now in (0.0, 1000.0, 5000.0):
        assert detector.stalled(now, stats_of(100, running=3), 0) is None


def test_the_time_begins_with_the_first_request_after_idleness() -> None:
    detector = StallDetector(STALL_S)
    assert detector.stalled(0, stats_of(100), 0) is None
    assert detector.stalled(5000, stats_of(100), 0) is None
    assert detector.stalled(5005, stats_of(100), 2) is None
    assert detector.stalled(5299, stats_of(100), 2) is None
    assert detector.stalled(5300, stats_of(100), 2) is not None


def test_without_a_count_of_ours_its_gauges_decide() -> None:
    detector = StallDetector(STALL_S)
    assert detector.stalled(0, stats_of(1), None) is None
    assert detector.stalled(400, stats_of(1), None) is None
    assert detector.stalled(700, stats_of(1, queued=1), None) is not None


def test_an_engine_that_lost_a_request_is_stalled() -> None:
    """It claims to be idle, we wait: nobody will answer."""
    detector = StallDetector(STALL_S)
    assert detector.stalled(0, stats_of(1), 1) is None
    assert detector.stalled(300, stats_of(1, running=0, queued=0), 1) is not None


def test_metrics_gone_for_long_are_a_stall_and_for_short_are_not() -> None:
    detector = StallDetector(STALL_S)
    assert detector.stalled(0, stats_of(1), 1) is None
    assert detector.stalled(299, None, 1) is None
    reason = detector.stalled(300, None, 1)
    assert reason is not None
    assert "not been readable for 300 s" in reason


def test_readable_again_begins_anew() -> None:
    detector = StallDetector(STALL_S)
    detector.stalled(0, stats_of(1), 1)
    assert detector.stalled(290, None, 1) is None
    assert detector.stalled(295, stats_of(2), 1) is None
    assert detector.stalled(590, None, 1) is None


def test_an_engine_without_counters_is_not_judged() -> None:
    detector = StallDetector(STALL_S)
    for now in (0.0, 1000.0, 2000.0):
        assert detector.stalled(now, None, 5) is None
    assert not detector.has_counters
