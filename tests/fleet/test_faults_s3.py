"""S3 refusing, slow, silent or gone: no batch is ever done without its object."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflashq.config import Settings
from dflashq.core import keys
from tests.support.engine_emulator import emulated_profile
from tests.support.fault_fleet import FaultFleet, ProxyPair, put_of
from tests.support.fleet import FleetHarness, prompts_file, requests, wait_until
from tests.support.lax_s3 import LaxS3
from tests.support.tcp_proxy import TcpProxy
from tests.support.wait import WAIT_S

pytestmark = pytest.mark.fleet


def s3_proxies(fault_fleet: FaultFleet) -> list[TcpProxy]:
    return [proxies.s3 for proxies in fault_fleet.proxies.values()]


def done_without_object(fault_fleet: FaultFleet, run: str) -> list[str]:
    """Batches in the done-set whose object S3 does not have."""
    return [
        batch
        for batch, ref in fault_fleet.ledger.done(run).items()
        if fault_fleet.blobs.head(ref.key) is None
    ]


def test_s3_refuses_while_batches_upload(two: FaultFleet) -> None:
    """503, 403, a vanished bucket, damaged bodies, silence: in turn, then it is well again."""
    proxies = s3_proxies(two)
    with two.slowly():
        two.begin("refused", 160, batch_size=20)
        held = two.wait_kept("refused", 5)
        for proxy in proxies:
            proxy.answer(503, "SlowDown")
    for status, code in ((503, "SlowDown"), (403, "AccessDenied"), (404, "NoSuchBucket")):
        for proxy in proxies:
            proxy.answer(status, code)
        wait_until(lambda: sum(p.answered for p in proxies) > 0, f"somebody meets {code}")
        done = two.ledger.status("refused").done
        wait_until(lambda: sum(p.answered for p in proxies) > 3, f"somebody meets {code} again")
        assert two.ledger.status("refused").done == done
        for proxy in proxies:
            proxy.answered = 0
    for proxy in proxies:
        proxy.damaged = 0
        proxy.damage()
    wait_until(lambda: sum(p.damaged for p in proxies) > 0, "a body is damaged")
    for proxy in proxies:
        proxy.freeze()
    done = two.ledger.status("refused").done
    two.wait_announced(6)
    assert two.ledger.status("refused").done == done
    for proxy in proxies:
        proxy.pass_on()
    two.wait_finished("refused")
    assert not done_without_object(two, "refused")
    assert two.oracle("refused").accepted == 160
    asked = two.request_counts()
    assert {asked[prompt] for prompt in held} == {1}
    assert not two.ledger.status("refused").dead
    for batch in two.ledger.done("refused"):
        assert two.ledger.story("refused", batch) == []  # an outage spends no attempt


def test_the_answer_to_a_put_that_succeeded_is_lost(two: FaultFleet) -> None:
    """The retry meets 412: the object is ours, it is adopted with its own counts."""
    for proxy in s3_proxies(two):
        proxy.lost = 0
        proxy.lose_reply_to(put_of(two.settings, "lost-reply", keys.batch_name(0)))
    two.begin("lost-reply", 40, batch_size=20)
    two.wait_finished("lost-reply")
    assert sum(proxy.lost for proxy in s3_proxies(two)) == 1
    assert two.oracle("lost-reply").accepted == 40
    assert any("adopted: run=lost-reply" in w.log.read_text() for w in two.named.values())
    objects = list(two.blobs.list(keys.completions_prefix("lost-reply")))
    assert len(objects) == 2
    assert set(two.request_counts().values()) >= {1}


def test_a_slow_s3_only_takes_longer(two: FaultFleet) -> None:
    for proxy in s3_proxies(two):
        proxy.delay(0.4)
    two.begin("slow-s3", 60, batch_size=10)
    two.wait_finished("slow-s3")
    assert two.oracle("slow-s3").accepted == 60


def test_an_s3_outage_fills_the_keep_budget_and_no_more(
    settings: Settings, tmp_path: Path, tiny_model: Path
) -> None:
    """Generation goes on while there is room, then the gate closes; S3 is back, so are we."""
    # Sixty-four answers, which one call keeps, are less than a tenth of the budget.
    stats = tmp_path / "stats.jsonl"
    profile = emulated_profile(
        tmp_path,
        model_dir=tiny_model,
        lengths="fixed:800",
        token_ms=0.1,
        slots=16,
        stats_file=stats,
    )
    small = settings.model_copy(update={"keep_budget_mb": 1, "sweep_s": 0.5})
    with FleetHarness(small, profile, tmp_path) as fleet, ProxyPair(small) as proxies:
        fleet.enqueue("outage", prompts_file(tmp_path / "p.jsonl", 1800), batch_size=600)
        fleet.settings = proxies.settings
        worker = fleet.start("w0")
        proxies.s3.answer(503, "SlowDown", only=put_of(small, "outage"))
        wait_until(lambda: "used its budget" in worker.tail(), "the budget is used")
        wait_until(lambda: fleet.ledger.workers()[worker.name]["in_flight"] == 0, "it rests")
        asked = requests(stats).total()
        kept_bytes = fleet.ledger.status("outage").kept_bytes
        assert 0.9 * 2**20 < kept_bytes <= 2**20
        fleet.wait_announced(5)  # a gate that leaked would admit meanwhile
        assert requests(stats).total() == asked < 1800
        assert fleet.ledger.status("outage").done == 0
        proxies.s3.pass_on()
        fleet.wait_finished("outage")
        assert fleet.oracle("outage").accepted == 1800
        assert set(requests(stats).values()) == {1}


def test_an_s3_without_conditional_writes_is_refused(
    settings: Settings, tmp_path: Path, tiny_model: Path
) -> None:
    profile = emulated_profile(tmp_path, model_dir=tiny_model)
    with LaxS3() as s3:
        careless = settings.model_copy(update={"s3_endpoint_url": s3.endpoint_url})
        with FleetHarness(settings, profile, tmp_path) as fleet:
            fleet.enqueue("careless", prompts_file(tmp_path / "p.jsonl", 5))
            fleet.settings = careless
            worker = fleet.start("w0", wait=False)
            assert worker.process.wait(WAIT_S) == 1
            assert "does not honour If-None-Match" in worker.tail()
            assert fleet.ledger.status("careless").pending == 1
