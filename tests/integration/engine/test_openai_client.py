"""The second dialect: chat servers whose token ids are taken, under either server's names."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from dflashq.core.errors import (
    ConfigError,
    EngineDownError,
    EngineError,
    EngineMismatchError,
    EngineRefusedError,
    EngineRequestError,
    EngineStartError,
)
from dflashq.core.model import Generation, Sampling
from dflashq.engine.chat_renderer import ChatRenderer
from dflashq.engine.dialects import DIALECTS, openai
from dflashq.engine.dialects.openai import OpenAIChat, OpenAIClient, chat_body, parse_chat_response
from dflashq.engine.dialects.sglang import SGLangClient
from dflashq.engine.profiles import Profile
from dflashq.engine.readiness import Readiness
from dflashq.engine.request import Conversation
from dflashq.engine.startup_check import GOLDEN, StartupCheck
from dflashq.engine.supervisor import EngineSupervisor
from tests.support.engine_emulator import EmulatedEngine
from tests.support.engine_emulator.profile import token_options
from tests.support.supervised_engine import settings_in, start
from tests.support.wait import WAIT_S

KEY = "key-that-nobody-may-see"
CONVERSATION = Conversation([{"role": "user", "content": "What is 12 + 30?"}], None, True)


@pytest.fixture(scope="module", params=["vllm", "sglang"])
def server(request: pytest.FixtureRequest, tiny_model: Path) -> Iterator[EmulatedEngine]:
    options = token_options(tiny_model) | {"lengths": "uniform:8:40", "model": "tiny"}
    with EmulatedEngine(**options, tokenizer=tiny_model, chat=request.param, api_key=KEY) as engine:
        yield engine


def profile_for(url: str, model_dir: Path, **tables: Any) -> Profile:
    launch = {"kind": "external", "dialect": "openai", "url": url, "start_timeout_s": WAIT_S}
    model = {"id": "tiny", "path": str(model_dir)}
    rows: dict[str, Any] = {"name": "far", "model": model, "launch": launch}
    return Profile.model_validate(rows | {"concurrency": {"limit": 4}} | tables)


def generate(
    url: str, renderer: ChatRenderer, conversation: Conversation, **sampling: Any
) -> Generation:
    async def scene() -> Generation:
        client = OpenAIClient(url, "tiny", SecretStr(KEY))
        async with client:
            ids = renderer.render(
                conversation.messages, conversation.tools, thinking=conversation.thinking
            )
            ends = renderer.markers().end_ids
            return await client.generate(ids, Sampling(**sampling), "dfq-0001", ends, conversation)

    return asyncio.run(scene())


def test_ids_come_under_either_name(server: EmulatedEngine, tiny_model: Path) -> None:
    renderer = ChatRenderer(tiny_model)
    generation = generate(server.url, renderer, CONVERSATION)
    assert generation.prompt_ids == renderer.render(CONVERSATION.messages, None, thinking=True)
    assert generation.finish_reason == "stop"
    assert generation.matched == generation.output_ids[-1]
    assert generation.matched in renderer.markers().end_ids
    short = generate(server.url, renderer, CONVERSATION, max_new_tokens=5)
    assert (short.finish_reason, short.matched, len(short.output_ids)) == ("length", None, 5)


def test_a_history_with_tool_calls_renders_the_same(
    server: EmulatedEngine, tiny_model: Path
) -> None:
    call = {"name": "weather", "arguments": {"city": "Turin", "days": 2}}
    history = [
        {"role": "user", "content": "Warm?"},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "I ask.",
            "tool_calls": [{"id": "c0", "type": "function", "function": call}],
        },
        {"role": "user", "content": "And now?"},
    ]
    generation = generate(server.url, ChatRenderer(tiny_model), Conversation(history, None, True))
    assert generation.output_ids


def test_another_rendering_is_refused(server: EmulatedEngine, tiny_model: Path) -> None:
    async def scene() -> None:
        async with OpenAIClient(server.url, "tiny", SecretStr(KEY)) as client:
            await client.generate([1, 2, 3], Sampling(), "dfq-0001", {2}, CONVERSATION)

    with pytest.raises(EngineRefusedError, match="not the 3 of our tokenizer"):
        asyncio.run(scene())


def test_a_chat_server_becomes_ready_and_passes_the_check(
    server: EmulatedEngine, tiny_model: Path
) -> None:
    profile = profile_for(server.url, tiny_model)
    ready = Readiness(profile, server.url, SecretStr(KEY))
    assert ready.reached()
    assert ready.server_info["served_model_name"] == "tiny"
    assert ready.server_info["max_model_len"] == 32768
    assert "version" in ready.server_info
    StartupCheck(profile, ChatRenderer(tiny_model), SecretStr(KEY)).check(
        server.url, ready.server_info
    )
    client = OpenAIChat().new_client(profile, server.url, ready.server_info, SecretStr(KEY))
    assert isinstance(client, OpenAIClient)
    assert client.model == "tiny"


def test_a_key_is_needed_and_never_told(
    server: EmulatedEngine, tiny_model: Path, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level("DEBUG")
    profile = profile_for(
        server.url,
        tiny_model,
        launch={
            "kind": "external",
            "dialect": "openai",
            "url": server.url,
            "start_timeout_s": 0.5,
        },
    )
    for key, match in ((None, "set DFLASHQ_ENGINE_API_KEY"), ("wrong-key", "asks for a key")):
        with pytest.raises(EngineStartError, match=match):
            supervise(profile, tmp_path, key)
    supervise(profile_for(server.url, tiny_model), tmp_path, KEY)
    assert KEY not in caplog.text
    assert "wrong-key" not in caplog.text
    assert KEY not in repr(settings_in(tmp_path, engine_api_key=KEY))


def supervise(profile: Profile, tmp_path: Path, key: str | None) -> None:
    """Start and stop; raises what kept it from being ready."""
    supervisor = EngineSupervisor(
        profile,
        settings_in(tmp_path, engine_api_key=key),
        on_ready=lambda *_: None,
        on_down=lambda _: None,
        on_failed=lambda _: None,
    )
    start(supervisor)
    supervisor.stop()


def test_a_server_without_ids_is_refused_with_a_sentence(tmp_path: Path, tiny_model: Path) -> None:
    options = token_options(tiny_model) | {"model": "tiny", "chat": "no-ids"}
    with EmulatedEngine(**options, tokenizer=tiny_model) as engine:
        with pytest.raises(EngineMismatchError, match="does not return token ids") as caught:
            supervise(profile_for(engine.url, tiny_model), tmp_path, None)
        assert "`return_token_ids`" in str(caught.value)


def test_the_only_model_is_the_one(server: EmulatedEngine, tiny_model: Path) -> None:
    """Servers name their model as they like."""
    profile = profile_for(server.url, tiny_model, model={"id": "other", "path": str(tiny_model)})
    assert OpenAIChat().report(profile, server.url, SecretStr(KEY))["served_model_name"] == "tiny"


def test_none_of_several_models_is_refused(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {"data": [{"id": "a"}, {"id": "b", "max_model_len": 7}]}
    monkeypatch.setattr(openai, "get_json", lambda *_: rows)
    with pytest.raises(EngineMismatchError, match="does not serve 'tiny' but a, b"):
        OpenAIChat().report(profile_for("http://far", tiny_model), "http://far", None)
    chosen = profile_for("http://far", tiny_model, model={"id": "b"})
    assert OpenAIChat().report(chosen, "http://far", None)["max_model_len"] == 7


def test_an_external_profile_without_address_says_so(tmp_path: Path, tiny_model: Path) -> None:
    with pytest.raises(ConfigError, match="DFLASHQ_ENGINE_URL"):
        supervise(profile_for("", tiny_model), tmp_path, None)


def test_a_server_that_renders_otherwise_is_refused(tiny_model: Path) -> None:
    options = token_options(tiny_model) | {"model": "tiny", "chat": "vllm"}
    with EmulatedEngine(**options, tokenizer=tiny_model, template_extra="\n") as engine:
        profile = profile_for(engine.url, tiny_model)
        with pytest.raises(EngineMismatchError, match="'one turn' differs at position"):
            StartupCheck(profile, ChatRenderer(tiny_model), None).check(engine.url, {})


def test_no_server_is_down_and_a_silent_call_is_an_error(tiny_model: Path) -> None:
    with pytest.raises(EngineDownError):
        generate("http://127.0.0.1:9", ChatRenderer(tiny_model), CONVERSATION)

    async def scene() -> None:
        async with OpenAIClient("http://127.0.0.1:9", "tiny") as client:
            await client.generate([1], Sampling(), "dfq-0001", {2})

    with pytest.raises(EngineError, match="need the conversation"):
        asyncio.run(scene())


def test_everything_is_spelled_out() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    body = chat_body(
        "m", Conversation(CONVERSATION.messages, tools, False), Sampling(), "r", {9, 2}
    )
    assert body["tools"] == tools
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    assert body["return_token_ids"] is True
    assert body["stream"] is False
    assert body["stop_token_ids"] == [2, 9]
    neutral = ("presence_penalty", "frequency_penalty", "repetition_penalty")
    assert [body[name] for name in neutral] == [0.0, 0.0, 1.0]
    assert "tools" not in chat_body("m", CONVERSATION, Sampling(), "r", ())


def answer(**choice: Any) -> dict[str, Any]:
    row = {"finish_reason": "stop", "token_ids": [7, 8, 2], "stop_reason": None}
    count = len(choice.get("token_ids") or row["token_ids"])  # type: ignore[arg-type]
    return {
        "prompt_token_ids": [1, 2],
        "choices": [row | choice],
        "usage": {"completion_tokens": choice.pop("count", count)},
    }


@pytest.mark.parametrize(
    ("choice", "finish", "matched"),
    [
        ({}, "stop", 2),
        ({"stop_reason": 2}, "stop", 2),
        ({"finish_reason": "tool_calls"}, "stop", 2),
        ({"finish_reason": "length"}, "length", None),
        ({"matched_stop": "NaN happened"}, "stop", "NaN happened"),
        ({"token_ids": [7, 8]}, "stop", None),
    ],
)
def test_how_an_answer_ended(choice: dict[str, Any], finish: str, matched: Any) -> None:
    generation = parse_chat_response(answer(**choice), [1, 2], frozenset({2}))
    assert (generation.finish_reason, generation.matched) == (finish, matched)


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        (answer(finish_reason="abort"), "aborted"),
        (answer(finish_reason="content_filter"), "'content_filter'"),
        (answer(token_ids=None), "no token ids"),
        (answer(token_ids=[1.5]), "no list of token ids"),
        (answer(count=4), "counts 4 tokens and carries 3"),
        ({**answer(), "prompt_token_ids": None}, "no token ids"),
        ({**answer(), "choices": []}, "one choice"),
        ([], "the completion is no object"),
    ],
)
def test_what_is_not_a_sample(row: Any, sentence: str) -> None:
    with pytest.raises(EngineRequestError, match=sentence):
        parse_chat_response(row, [1, 2], frozenset({2}))


def test_the_native_dialect_is_the_default(tiny_model: Path) -> None:
    profile = Profile.model_validate({"name": "n", "model": {"id": "m"}})
    client = DIALECTS[profile.launch.dialect].new_client(profile, "http://x", {}, None)
    assert isinstance(client, SGLangClient)


@pytest.mark.sglang
def test_against_a_real_sglang(sglang_server: str, tiny_model: Path) -> None:
    """Its chat route gives the ids that we render, for every golden conversation without tools."""
    model = {"id": "tiny-thinking", "path": str(tiny_model)}
    profile = profile_for(sglang_server, tiny_model, model=model)
    ready = Readiness(profile, sglang_server, None)
    assert ready.reached()
    assert ready.server_info["version"].startswith("0.5")
    renderer = ChatRenderer(tiny_model)
    check = StartupCheck(profile, renderer, None)
    assert check.check(sglang_server, ready.server_info) == 2 * len(GOLDEN)

    async def scene() -> list[Generation]:
        async with OpenAIClient(sglang_server, "tiny-thinking") as client:
            generations = []
            for number, (messages, tools) in enumerate(GOLDEN.values()):
                if tools:
                    continue
                ids = renderer.render(messages, None, thinking=True)
                ends = renderer.markers().end_ids
                sampling = Sampling(temperature=0.6, max_new_tokens=200)
                conversation = Conversation(messages, None, True)
                generations.append(
                    await client.generate(ids, sampling, f"dfq-chat-{number}", ends, conversation)
                )
            return generations

    for generation in asyncio.run(scene()):
        if generation.finish_reason == "stop":
            assert generation.matched == generation.output_ids[-1]
        else:
            assert len(generation.output_ids) == 200


@pytest.mark.sglang
def test_a_real_sglang_passes_the_native_check(sglang_server: str, tiny_model: Path) -> None:
    model = {"id": "tiny-thinking", "path": str(tiny_model)}
    profile = Profile.model_validate({"name": "tiny", "model": model})
    check = StartupCheck(profile, ChatRenderer(tiny_model), None)
    assert check.check(sglang_server, {}) == 2 * len(GOLDEN)
