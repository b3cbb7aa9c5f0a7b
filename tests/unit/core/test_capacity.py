"""The plan counts what a linear estimate forgets: the last long answers."""

from __future__ import annotations

import heapq
import math
import random
from pathlib import Path

import pytest
from click.testing import CliRunner

from dflashq.cli.root import root
from dflashq.core.errors import UsageError
from dflashq.core.estimates.capacity import GpuPool, LognormalLengths, plan

CAMPAIGN = LognormalLengths.fit(2068, 4200, 16384)


def drawn(lengths: LognormalLengths, count: int, seed: int = 1) -> list[float]:
    rng = random.Random(seed)
    return [min(rng.lognormvariate(lengths.mu, lengths.sigma), lengths.cap) for _ in range(count)]


def simulated_s(answers: list[float], gpus: GpuPool) -> float:
    """List scheduling on all slots at the speed of one stream."""
    slots = [0.0] * (gpus.count * gpus.running)
    for tokens in answers:
        heapq.heappush(slots, heapq.heappop(slots) + tokens / gpus.stream_per_s)
    return max(slots)


def test_the_fit_has_the_mean_and_the_percentile_that_were_given() -> None:
    loose = LognormalLengths.fit(2068, 4200, 10**9)
    assert loose.mean == pytest.approx(2068, rel=1e-6)
    answers = sorted(drawn(loose, 200_000))
    assert answers[180_000] == pytest.approx(4200, rel=0.02)
    assert sum(answers) / len(answers) == pytest.approx(2068, rel=0.02)


def test_the_cap_cuts_mean_and_second_moment() -> None:
    tight = LognormalLengths.fit(2068, 4200, 4096)
    answers = drawn(tight, 200_000)
    assert tight.mean == pytest.approx(sum(answers) / len(answers), rel=0.01)
    assert tight.moment(2) == pytest.approx(sum(x * x for x in answers) / len(answers), rel=0.02)
    assert tight.capped == pytest.approx(sum(x >= 4096 for x in answers) / len(answers), rel=0.03)


@pytest.mark.parametrize(("mean", "p90"), [(2068, 2000), (2068, 9000), (0, 1)])
def test_lengths_that_no_lognormal_has_are_refused(mean: float, p90: float) -> None:
    with pytest.raises(UsageError, match="no lognormal"):
        LognormalLengths.fit(mean, p90, 16384)


def test_measured_lengths_give_the_same_curve() -> None:
    found = LognormalLengths.of([round(x) for x in drawn(CAMPAIGN, 20_000)], 16384)
    assert found.mean == pytest.approx(CAMPAIGN.mean, rel=0.02)
    assert LognormalLengths.of([100], 16384).mean == pytest.approx(100)


def test_equal_lengths_need_no_fit() -> None:
    same = LognormalLengths.fit(100, 100, 1000)
    assert (same.mean, same.left, same.capped) == (pytest.approx(100), pytest.approx(50), 0.0)
    assert LognormalLengths.fit(100, 100, 40).mean == 40


@pytest.mark.parametrize(("prompts", "count"), [(2_000, 1), (20_000, 2), (5_000, 8)])
def test_the_estimate_is_near_a_simulation(prompts: int, count: int) -> None:
    gpus = GpuPool("x", count, 1800.0, 2.0)
    seconds = [simulated_s(drawn(CAMPAIGN, prompts, seed), gpus) for seed in range(9)]
    expected = sorted(seconds)[4]
    found = plan(prompts, CAMPAIGN, [gpus])
    assert found.seconds == pytest.approx(expected, rel=0.08)
    assert found.linear_s < 0.99 * expected, "a linear estimate forgets the tail"


def test_few_prompts_last_as_long_as_their_longest() -> None:
    gpus = GpuPool("x", 8, 1800.0)
    found = plan(50, CAMPAIGN, [gpus])
    longest = sorted(max(drawn(CAMPAIGN, 50, seed)) for seed in range(99))[49] / gpus.stream_per_s
    assert 0.4 * longest < found.seconds < 1.3 * longest


def test_the_campaign() -> None:
    fleet = [GpuPool("rtxpro6000", 8, 1800, 1.9), GpuPool("b200", 2, 6000, 5.0, running=256)]
    found = plan(914_000, CAMPAIGN, fleet)
    assert found.tokens == pytest.approx(914_000 * CAMPAIGN.mean)
    assert found.linear_s < found.seconds < found.linear_s * 1.05
    assert sum(share.share for share in found.shares) == pytest.approx(1)
    hours = found.seconds / 3600
    assert found.dollars == pytest.approx(hours * (8 * 1.9 + 2 * 5.0))
    assert [share.prompts for share in found.shares] == [498_545, 415_455]


def test_nothing_can_be_planned_without_gpus() -> None:
    with pytest.raises(UsageError, match="rate above 0"):
        plan(10, CAMPAIGN, [])


def test_twice_the_gpus_is_not_quite_half_the_time() -> None:
    one, two = (plan(10_000, CAMPAIGN, [GpuPool("x", n, 1800)]).seconds for n in (1, 2))
    assert one / 2 < two < one
    assert not math.isnan(two)


def call(*words: str) -> str:
    done = CliRunner().invoke(root, ["plan", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


CALL = ("--prompts", "914000", "--mean", "2068", "--p90", "4200")


def test_the_command_tells_days_dollars_and_shares() -> None:
    said = call(*CALL, "--gpu", "rtxpro6000:8:1800:1.9", "--gpu", "b200:2:6000:5:256")
    assert "914,000 prompts" in said
    assert "rtxpro6000" in said
    assert "55 %" in said
    assert "19 h 5" in said
    assert "$" in said


def test_a_small_job_costs_cents_not_nothing() -> None:
    said = call("--prompts", "10", "--mean", "200", "--p90", "400", "--gpu", "x:1:1800:1.9")
    assert "10 prompts" in said
    assert "$0." in said


def test_a_measured_rate_is_read_from_what_bench_wrote(tmp_path: Path) -> None:
    measured = tmp_path / "bench.json"
    measured.write_text('{"best": {"tokens_per_s": 1800.0, "concurrency": 64}}')
    one = call(*CALL, "--gpu", f"x:8:{measured}:1.9", "--json")
    assert one == call(*CALL, "--gpu", "x:8:1800:1.9:64", "--json")


@pytest.mark.parametrize(
    "gpu", ["x", "x:0:1800:1", "x:2:fast:1", "x:2:0:1", "x:2:1800:-1", "x:2:1800:1:0", "x:2:nan:1"]
)
def test_a_gpu_that_makes_no_sense_is_a_usage_error(gpu: str) -> None:
    done = CliRunner().invoke(root, ["plan", *CALL, "--gpu", gpu])
    assert done.exit_code == 2
    assert "NAME:COUNT:TOKENS_PER_S" in done.output
