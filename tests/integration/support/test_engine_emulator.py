"""The emulated engine is an instrument: what it claims must be true."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
import requests

from dflashq.engine.profiles import load_profile
from tests.support.engine_emulator import EmulatedEngine, emulated_profile, prompt_hash
from tests.support.engine_emulator.answers import LengthDistribution
from tests.support.engine_emulator.questions import CLOSE, END, Row, ask, ask_many, body, metric
from tests.support.wait import WAIT_S, wait_until


@pytest.fixture(scope="module")
def engine() -> Iterator[EmulatedEngine]:
    with EmulatedEngine(
        slots=4, token_ms=1, lengths="fixed:20", end_id=END, think_close=CLOSE, context_length=1000
    ) as running:
        yield running


@pytest.fixture(autouse=True)
def _no_faults(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "engine" in request.fixturenames:
        request.getfixturevalue("engine").set_faults()


# -- answers -------------------------------------------------------------------------------------


def test_an_answer_has_the_shape_of_the_real_one(engine: EmulatedEngine) -> None:
    row = ask(engine, [5, 6, 7], rid="r-1").json()
    ids, meta = row["output_ids"], row["meta_info"]
    assert row["prompt_token_ids"] == [5, 6, 7]
    assert meta["id"] == "r-1"
    assert meta["finish_reason"] == {"type": "stop", "matched": END}
    assert (ids[-1], ids.count(CLOSE), len(ids)) == (END, 1, 20)
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (3, 20)
    assert 1 <= meta["spec_accept_length"] <= 4
    assert meta["e2e_latency"] > 0
    assert meta["num_retractions"] == 0


def test_answers_follow_from_prompt_and_seed(engine: EmulatedEngine) -> None:
    first = ask(engine, [1, 2, 3]).json()["output_ids"]
    assert ask(engine, [1, 2, 3]).json()["output_ids"] == first
    assert ask(engine, [1, 2, 4]).json()["output_ids"] != first
    options: Row = {"lengths": "fixed:20", "end_id": END, "think_close": CLOSE}
    with EmulatedEngine(**options) as same, EmulatedEngine(seed=1, **options) as other:
        assert ask(same, [1, 2, 3]).json()["output_ids"] == first
        assert ask(other, [1, 2, 3]).json()["output_ids"] != first


def test_a_prompt_that_closed_its_thinking_gets_a_plain_answer(engine: EmulatedEngine) -> None:
    assert CLOSE not in ask(engine, [5, CLOSE, 4]).json()["output_ids"]


def test_max_new_tokens_is_exact(engine: EmulatedEngine) -> None:
    row = ask(engine, [1, 2, 3], limit=7).json()
    assert len(row["output_ids"]) == 7
    assert row["meta_info"]["finish_reason"] == {"type": "length", "length": 7}


def test_lengths() -> None:
    draws = [
        LengthDistribution.parse("lognormal:mean=500,sigma=0.6,cap=2000").draw(str(i))
        for i in range(4000)
    ]
    assert 470 < sum(draws) / len(draws) < 520
    assert max(draws) <= 2000
    spread = {LengthDistribution.parse("uniform:10:13").draw(str(i)) for i in range(200)}
    assert spread == {10, 11, 12, 13}
    with pytest.raises(ValueError, match="no length distribution"):
        LengthDistribution.parse("gamma:1")


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (body([1] * 1000), "The input (1000 tokens) is longer than the model's context length"),
        (body([1] * 900), "You requested a total of 1100 tokens: 900 tokens from the input"),
        (body([]), "at least one id"),
        ({**body([1]), "input_id": 3}, "unknown field: input_id"),
        ({"text": "hello", "sampling_params": {}}, "input_ids only"),
        (body([1], limit=0), "max_new_tokens"),
    ],
)
def test_refusals(engine: EmulatedEngine, sent: Row, says: str) -> None:
    answer = requests.post(f"{engine.url}/generate", json=sent, timeout=WAIT_S)
    assert answer.status_code == 400
    assert says in answer.json()["error"]["message"]


# -- batching ------------------------------------------------------------------------------------


def test_the_batch_never_exceeds_its_slots_and_stays_full(engine: EmulatedEngine) -> None:
    prompts = [[7, n] for n in range(40)]
    engine.set_faults(hang=True)

    async def run() -> tuple[Row, list[Row]]:
        asking = asyncio.create_task(asyncio.to_thread(ask_many, engine, prompts))
        await asyncio.to_thread(wait_until, lambda: engine.stats()["queued"] == 36, "36 queue")
        before = await asyncio.to_thread(engine.stats)
        await asyncio.to_thread(engine.set_faults, hang=False)
        return before, await asking

    before, rows = asyncio.run(run())
    after = engine.stats()
    assert before["running"] == 4
    assert after["answered"] - before["answered"] == 40
    busy, passed = (after[k] - before[k] for k in ("slot_seconds", "clock_s"))
    assert passed >= 0.199, "ten rounds of 20 ms are the least that four slots need"
    assert 0.8 <= busy <= 4 * passed
    assert after["saturated_seconds"] - before["saturated_seconds"] >= 0.175
    queued = sorted(row["meta_info"]["queue_time"] for row in rows)
    assert queued[-1] - queued[0] >= 0.175
    assert all(after["prompts"][prompt_hash(p)] == {"received": 1, "answered": 1} for p in prompts)


def test_a_fuller_batch_is_slower_for_each() -> None:
    with EmulatedEngine(
        slots=8, token_ms=1, token_ms_per_running=1, lengths="fixed:40", end_id=END
    ) as one:
        one.set_faults(hang=True)

        async def run() -> list[Row]:
            asking = asyncio.create_task(
                asyncio.to_thread(ask_many, one, [[n] for n in range(1, 9)])
            )
            full = lambda: one.stats()["running"] == 8  # noqa: E731
            await asyncio.to_thread(wait_until, full, "the batch is full")
            await asyncio.to_thread(one.set_faults, hang=False)
            return await asking

        together = asyncio.run(run())
    # 40 ids in steps of 8 ms; one that runs alone needs 40 ms.
    assert all(row["meta_info"]["e2e_latency"] >= 0.3 for row in together)


def test_counters_move_while_a_request_runs(engine: EmulatedEngine) -> None:
    with EmulatedEngine(slots=1, token_ms=10, lengths="fixed:1000000", end_id=END) as slow:

        async def run() -> None:
            async with aiohttp.ClientSession() as session:
                asking = asyncio.create_task(
                    session.post(f"{slow.url}/generate", json=body([1], limit=30000, rid="w"))
                )
                moved = lambda: metric(slow, "realtime_tokens_total|decode") > 3  # noqa: E731
                await asyncio.to_thread(wait_until, moved, "decode counter moves")
                assert await asyncio.to_thread(metric, slow, "num_running_reqs") == 1
                assert await asyncio.to_thread(metric, slow, "generation_tokens_total") == 0
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)

        asyncio.run(run())
        wait_until(lambda: slow.stats()["running"] == 0, "a gone client frees its slot")
        assert slow.stats()["dropped"] == 1


def test_abort_is_by_prefix_and_answers_200_with_what_there_is() -> None:
    with EmulatedEngine(slots=1, token_ms=5, lengths="fixed:100000", end_id=END) as slow:

        async def run() -> list[Row]:
            async with aiohttp.ClientSession() as session:

                async def one(rid: str) -> Row:
                    sent = body([1, 2], limit=30000, rid=rid)
                    async with session.post(f"{slow.url}/generate", json=sent) as got:
                        assert got.status == 200
                        row: Row = await got.json()
                        return row

                running = asyncio.create_task(one("aa-1"))
                moved = lambda: metric(slow, "realtime_tokens_total|decode") > 3  # noqa: E731
                await asyncio.to_thread(wait_until, moved, "it runs")
                queued = asyncio.create_task(one("aa-2"))
                waits = lambda: slow.stats()["queued"] == 1  # noqa: E731
                await asyncio.to_thread(wait_until, waits, "the second waits")
                async with session.post(f"{slow.url}/abort_request", json={"rid": "aa"}) as got:
                    assert got.status == 200
                return [await running, await queued]

        running, queued = asyncio.run(run())
    assert running["meta_info"]["finish_reason"]["type"] == "abort"
    assert running["meta_info"]["finish_reason"]["status_code"] is None
    assert 0 < len(running["output_ids"]) < 30000
    assert queued["output_ids"] == []
    assert queued["meta_info"]["finish_reason"]["message"] == "Abort in waiting queue"


# -- what it says about itself -------------------------------------------------------------------


def test_server_info_and_health(engine: EmulatedEngine) -> None:
    info = requests.get(f"{engine.url}/server_info", timeout=WAIT_S).json()
    assert info["version"] == "0.5.23"
    assert info["context_length"] == 1000
    assert info["speculative_algorithm"] == "EAGLE"
    assert info["internal_states"][0]["effective_max_running_requests_per_dp"] == 4
    assert requests.get(f"{engine.url}/health", timeout=WAIT_S).status_code == 200
    engine.set_faults(health_503=True)
    assert requests.get(f"{engine.url}/health", timeout=WAIT_S).status_code == 503
    assert ask(engine, [4]).status_code == 200


def test_server_info_can_lie() -> None:
    with EmulatedEngine(speculation="none", server_info={"max_running_requests": 48}) as odd:
        info = requests.get(f"{odd.url}/server_info", timeout=WAIT_S).json()
        row = ask(odd, [1]).json()
    assert info["speculative_algorithm"] is None
    assert info["speculative_num_steps"] is None
    assert info["max_running_requests"] == 48
    assert "spec_accept_length" not in row["meta_info"]


def test_the_profile_launches_it(tmp_path: Path) -> None:
    rows = [{"content": "<end>", "id": 300}, {"content": "</think>", "id": 301}]
    vocabulary = {f"t{n}": n for n in range(300)}
    tokenizer = {"added_tokens": rows, "model": {"vocab": vocabulary}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))
    path = emulated_profile(tmp_path, model_dir=tmp_path, slots=3, faults={"slow": 2})
    profile = load_profile(str(path))
    argv = profile.argv(1234, 5678, str(tmp_path), "unused")
    assert argv[argv.index("--port") + 1] == "1234"
    assert json.loads(argv[argv.index("--faults") + 1]) == {"slow": 2}
    assert argv[argv.index("--ids") + 1] == "151:300"
    assert argv[argv.index("--think-close") + 1] == "301"
    assert profile.expectations()["max_running_requests"] == 3
