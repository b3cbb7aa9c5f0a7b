"""The emulated engine fails exactly as it was told to."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from dflashq.core.checks import judge
from dflashq.core.markers import Markers
from dflashq.core.model import Checks, Generation
from dflashq.core.output import Output
from tests.emulated import EmulatedEngine, prompt_hash, read_stats
from tests.emulated.answers import Lengths, Voice
from tests.emulated.asking import CLOSE, END, Row, ask, ask_many, body, metric, wait_until
from tests.emulated.faults import CONTENT, Faults


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


@pytest.mark.parametrize("fault", [f for f in CONTENT if f not in ("http_400", "hang_requests")])
def test_content_faults(engine: EmulatedEngine, fault: str) -> None:
    engine.set_faults(**{fault: 1.0})
    row = ask(engine, [8, 8, 8], limit=900 if fault == "looping" else 60).json()
    ids, finish = row["output_ids"], row["meta_info"]["finish_reason"]
    expected = {
        "stub": ids == [CLOSE, END],
        "truncated": len(ids) == 60 and finish == {"type": "length", "length": 60},
        "clamped": len(ids) == 10 and finish == {"type": "length", "length": 10},
        "looping": ids[-500:-5] == ids[-495:],
        "endless": len(ids) == 60 and ids[-21:-7] == ids[-14:] and finish["type"] == "length",
        "nan": finish.get("matched") == "NaN happened" and ids[-1] == END,
        "empty": ids == [END],
        "no_answer": CLOSE not in ids and ids[-1] == END,
        "corrupt_vocab": max(ids) == 248327,
        "corrupt_end": ids[-1] != END == finish.get("matched"),
        "bad_markup": ids.count(CLOSE) == 3,
    }
    assert expected[fault], row


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("", None),
        ("stub", "no_answer"),
        ("truncated", "truncated"),
        ("clamped", "clamped"),
        ("looping", "looping"),
        ("nan", "corrupt"),
        ("empty", "empty"),
        ("no_answer", "no_answer"),
        ("corrupt_vocab", "corrupt"),
        ("corrupt_end", "corrupt"),
        ("bad_markup", "bad_markup"),
    ],
)
def test_content_faults_earn_their_verdict(fault: str, reason: str | None) -> None:
    lengths = Lengths.parse("uniform:10:200")
    voice = Voice(lengths, 1000, 20000, END, CLOSE, vocab_size=20000, seed=0)
    markers = Markers(frozenset({END}), None, CLOSE, frozenset(), 20000)
    for number in range(100, 150):
        answer = voice.answer([5, number], 4000, fault)
        made = Generation(
            [5, number], answer.ids, answer.finish["type"], answer.finish.get("matched")
        )
        verdict = judge(
            made,
            Output(made.output_array, markers, thinking=True),
            checks=Checks(),
            max_new_tokens=4000,
        )
        assert verdict.reason == reason, verdict


def test_transient_faults_end_with_their_tries(engine: EmulatedEngine) -> None:
    engine.set_faults(http_503=1.0, transient_tries=1)
    assert ask(engine, [11, 1]).status_code == 503
    assert ask(engine, [11, 1]).status_code == 200
    engine.set_faults(http_503=0.0, http_500=1.0)
    assert ask(engine, [11, 2]).status_code == 500
    engine.set_faults(http_500=0.0, reset=1.0)
    with pytest.raises(requests.ConnectionError):
        ask(engine, [11, 3])
    engine.set_faults(reset=0.0, garbage=1.0)
    with pytest.raises(requests.JSONDecodeError):
        ask(engine, [11, 4]).json()
    engine.set_faults(garbage=0.0, altered_prompt=1.0)
    assert ask(engine, [11, 5]).json()["prompt_token_ids"] == [11, 6]
    engine.set_faults(altered_prompt=0.0, abort=1.0)
    row = ask(engine, [11, 7]).json()
    assert row["meta_info"]["finish_reason"]["type"] == "abort"
    assert len(row["output_ids"]) == 10


def test_a_permanent_refusal(engine: EmulatedEngine) -> None:
    engine.set_faults(http_400=1.0)
    assert {ask(engine, [12]).status_code for _ in range(3)} == {400}


def test_fractions_are_shares_of_prompts() -> None:
    faults = Faults(stub=0.2, looping=0.1)
    picked = [faults.content(prompt_hash([n]), 0) for n in range(3000)]
    assert 0.17 < picked.count("stub") / 3000 < 0.23
    assert 0.08 < picked.count("looping") / 3000 < 0.12
    assert picked == [faults.content(prompt_hash([n]), 0) for n in range(3000)]
    with pytest.raises(ValueError, match="sum to"):
        Faults(stub=0.8, nan=0.3)
    with pytest.raises(ValueError, match="Extra inputs"):
        Faults.model_validate({"stubb": 0.1})


def test_a_hang_stops_tokens_but_not_health(engine: EmulatedEngine) -> None:
    engine.set_faults(hang=True)
    with pytest.raises(requests.Timeout):
        requests.post(f"{engine.url}/generate", json=body([13]), timeout=0.5)
    assert requests.get(f"{engine.url}/health", timeout=5).status_code == 200
    still = metric(engine, "realtime_tokens_total|decode")
    assert metric(engine, "realtime_tokens_total|decode") == still


def test_poison_kills_the_process_as_a_crash_does(tmp_path: Path) -> None:
    log = tmp_path / "stats.jsonl"
    options: Row = {"stats_file": log, "faults": {"poison": [[66, 67]]}, "end_id": END}
    with EmulatedEngine(**options) as first:
        assert ask(first, [66, 1, 67]).status_code == 200
        with pytest.raises(requests.ConnectionError):
            ask(first, [1, 66, 67, 2])
        assert first.process is not None
        assert first.process.wait(5) == -signal.SIGKILL
    with EmulatedEngine(**options) as second:
        ask(second, [66, 1, 67])
    tally = read_stats(log)
    assert tally.received[prompt_hash([66, 1, 67])] == 2
    assert tally.answered[prompt_hash([66, 1, 67])] == 2
    assert tally.received[prompt_hash([1, 66, 67, 2])] == 1
    assert tally.answered[prompt_hash([1, 66, 67, 2])] == 0
    assert len(tally.pids) == 2


def test_crash_after_answers() -> None:
    with EmulatedEngine(faults={"crash_after": 2}, lengths="fixed:3") as brittle:
        assert ask(brittle, [1]).status_code == 200
        with pytest.raises(requests.ConnectionError):
            ask(brittle, [2])
        assert brittle.process is not None
        assert brittle.process.wait(5) == -signal.SIGKILL


def test_start_faults() -> None:
    doomed = EmulatedEngine(faults={"exit_at_start": "out of GPU memory"})
    with pytest.raises(RuntimeError, match="out of GPU memory"):
        doomed.start()
    started = time.monotonic()
    with EmulatedEngine(faults={"ready_after_s": 1.0}):
        assert time.monotonic() - started > 1.0


def test_sigterm_drains() -> None:
    with EmulatedEngine(slots=2, token_ms=5, lengths="fixed:100", end_id=END) as polite:

        async def run() -> list[Row]:
            asking = asyncio.create_task(asyncio.to_thread(ask_many, polite, [[1], [2], [3]]))
            busy = lambda: polite.stats()["queued"] == 1  # noqa: E731
            await asyncio.to_thread(wait_until, busy, "three requests are there")
            assert polite.process is not None
            polite.process.send_signal(signal.SIGTERM)
            return await asking

        rows = asyncio.run(run())
        assert polite.process is not None
        assert polite.process.wait(10) == 0
    assert [row["meta_info"]["finish_reason"]["type"] for row in rows] == ["stop"] * 3
