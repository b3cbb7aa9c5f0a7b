"""The emulated engine fails exactly as it was told to."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from dflashq.core.generations.checks import judge
from dflashq.core.generations.segments import OutputSegments
from dflashq.core.generations.special_tokens import SpecialTokens
from dflashq.core.model import Checks, Generation
from tests.support.engine_emulator import EmulatedEngine, prompt_hash, read_stats
from tests.support.engine_emulator.answers import LengthDistribution, Voice
from tests.support.engine_emulator.faults import CONTENT, Faults
from tests.support.engine_emulator.profile import token_options
from tests.support.engine_emulator.questions import CLOSE, END, Row, ask, ask_many, body, metric
from tests.support.engine_emulator.refusals import ERRS, REFUSED
from tests.support.wait import WAIT_S, wait_until

NO_ANSWER = ("http_400", "refused", "hang_requests")
STREAMED = {"stream": True, "sampling_params": {"max_new_tokens": 200, "stream_interval": 4}}


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


@pytest.mark.parametrize("fault", [f for f in CONTENT if f not in NO_ANSWER])
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
    lengths = LengthDistribution.parse("uniform:10:200")
    voice = Voice(lengths, 1000, 20000, END, CLOSE, vocab_size=20000, seed=0)
    markers = SpecialTokens(frozenset({END}), None, CLOSE, frozenset(), 20000)
    for number in range(100, 150):
        answer = voice.answer([5, number], 4000, fault)
        made = Generation(
            [5, number], answer.ids, answer.finish["type"], answer.finish.get("matched")
        )
        verdict = judge(
            made,
            OutputSegments(made.output_array, markers, thinking=True),
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


@pytest.mark.parametrize("more", [{}, STREAMED], ids=["whole", "streamed"])
@pytest.mark.parametrize("status", [403, 451, 500])
def test_a_gateway_refuses_a_prompt_with_any_status(
    engine: EmulatedEngine, status: int, more: Row
) -> None:
    engine.set_faults(refused=1.0, refused_status=status)
    answers = [ask(engine, [14], **more) for _ in range(3)]
    assert {answer.status_code for answer in answers} == {status}
    assert {answer.json()["error"]["message"] for answer in answers} == {REFUSED}
    assert all("Retry-After" not in answer.headers for answer in answers)


@pytest.mark.parametrize("more", [{}, STREAMED], ids=["whole", "streamed"])
def test_a_gateway_refuses_without_an_answer(engine: EmulatedEngine, more: Row) -> None:
    engine.set_faults(refused=1.0, refused_how="close")
    for _ in range(2):
        with pytest.raises(requests.ConnectionError):
            ask(engine, [15], **more)
    engine.set_faults(refused_how="garbage")
    answer = ask(engine, [15], **more)
    assert answer.status_code == 200
    with pytest.raises(ValueError, match=r"Unterminated string|Invalid control"):
        json.loads(answer.text.removeprefix("data: "))


def test_a_refused_share_is_the_same_prompts_in_every_request(engine: EmulatedEngine) -> None:
    before = engine.stats()
    engine.set_faults(refused=0.5, refused_status=403)
    prompts = [[16, n] for n in range(20)]
    answered = [[ask(engine, ids).status_code for ids in prompts] for _ in range(2)]
    assert answered[0] == answered[1]
    assert set(answered[0]) == {200, 403}
    after = engine.stats()
    assert after["refused"] - before["refused"] == 2 * answered[0].count(403)


def test_a_gateway_refuses_marked_prompts_each_in_its_way(engine: EmulatedEngine) -> None:
    engine.set_faults(refused_marks=[([21, 22], 403), ([23, 24], "close"), ([25, 26], "status")])
    assert ask(engine, [1, 21, 22, 2]).status_code == 403
    assert ask(engine, [1, 25, 26, 2]).status_code == 500
    assert ask(engine, [1, 21, 2, 22]).status_code == 200
    with pytest.raises(requests.ConnectionError):
        ask(engine, [1, 23, 24])


def test_a_gateway_refuses_what_is_too_long_for_it(engine: EmulatedEngine) -> None:
    engine.set_faults(refused_over=3, refused_status=413)
    assert [ask(engine, [17] * n).status_code for n in (2, 3, 4, 5)] == [200, 200, 413, 413]
    engine.set_faults(spare_short=4)
    assert [ask(engine, [17] * n).status_code for n in (4, 5)] == [200, 413]


@pytest.mark.parametrize("more", [{}, STREAMED], ids=["whole", "streamed"])
def test_an_engine_only_errs(engine: EmulatedEngine, more: Row) -> None:
    engine.set_faults(every_status=429, retry_after_s=7, spare_short=2)
    answer = ask(engine, [18, 18, 18], **more)
    assert (answer.status_code, answer.headers["Retry-After"]) == (429, "7")
    assert answer.json()["error"]["message"] == ERRS
    assert ask(engine, [18, 18], **more).status_code == 200
    engine.set_faults(every_status=500)
    answer = ask(engine, [18, 18, 18], **more)
    assert answer.status_code == 500
    assert "Retry-After" not in answer.headers
    engine.set_faults(every_status=0)
    assert ask(engine, [18, 18, 18], **more).status_code == 200


def test_a_full_queue_says_when_to_come_again(engine: EmulatedEngine) -> None:
    engine.set_faults(http_503=1.0, retry_after_s=0.5)
    answer = ask(engine, [19])
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "0.5")


@pytest.mark.parametrize("faults", [{"every_status": 200}, {"refused_status": 302}])
def test_only_errors_are_error_statuses(faults: Row) -> None:
    with pytest.raises(ValueError, match=next(iter(faults))):
        Faults.model_validate(faults)


def test_chat_completions_are_refused_alike(tiny_model: Path) -> None:
    options = token_options(tiny_model) | {"tokenizer": tiny_model, "chat": "sglang"}
    messages = [{"role": "user", "content": "What is 12 + 30?"}]

    def chat() -> requests.Response:
        chat_url = f"{server.url}/v1/chat/completions"
        return requests.post(chat_url, json={"messages": messages}, timeout=WAIT_S)

    with EmulatedEngine(**options) as server:
        assert chat().status_code == 200
        server.set_faults(refused=1.0, refused_status=451)
        refused = chat()
        assert (refused.status_code, refused.json()["error"]["message"]) == (451, REFUSED)
        server.set_faults(refused_how="close")
        with pytest.raises(requests.ConnectionError):
            chat()
        server.set_faults(refused_how="garbage")
        with pytest.raises(requests.JSONDecodeError):
            chat().json()
        server.set_faults(refused=0.0, every_status=503, retry_after_s=2)
        failed = chat()
        assert (failed.status_code, failed.headers["Retry-After"]) == (503, "2")


def test_fractions_are_shares_of_prompts() -> None:
    faults = Faults(stub=0.2, looping=0.1)
    picked = [faults.content(prompt_hash([n]), 0, 1) for n in range(3000)]
    assert 0.17 < picked.count("stub") / 3000 < 0.23
    assert 0.08 < picked.count("looping") / 3000 < 0.12
    assert picked == [faults.content(prompt_hash([n]), 0, 1) for n in range(3000)]
    with pytest.raises(ValueError, match="sum to"):
        Faults(stub=0.8, nan=0.3)
    with pytest.raises(ValueError, match="Extra inputs"):
        Faults.model_validate({"stubb": 0.1})


def test_a_hang_stops_tokens_but_not_health(engine: EmulatedEngine) -> None:
    engine.set_faults(hang=True)
    with pytest.raises(requests.Timeout):
        requests.post(f"{engine.url}/generate", json=body([13]), timeout=0.5)
    assert requests.get(f"{engine.url}/health", timeout=WAIT_S).status_code == 200
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
        assert first.process.wait(WAIT_S) == -signal.SIGKILL
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
        assert brittle.process.wait(WAIT_S) == -signal.SIGKILL


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
        assert polite.process.wait(WAIT_S) == 0
    assert [row["meta_info"]["finish_reason"]["type"] for row in rows] == ["stop"] * 3
