"""A real SGLang: our rendering is its rendering, and its answers and refusals are as told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dflashq.core.errors import EngineRefusedError, EngineRequestError
from dflashq.core.model import Sampling
from dflashq.engine.chat_renderer import ChatRenderer
from dflashq.engine.dialects.sglang import SGLang, SGLangClient
from dflashq.engine.profile_match import effective_running_limit, lookup
from dflashq.engine.request import Conversation
from tests.support.sglang import renderer_of, report_of

pytestmark = pytest.mark.sglang

USER = {"role": "user", "content": "What is 12 + 30?"}
ANSWER = {
    "role": "assistant",
    "reasoning_content": "I add 12 and 30.",
    "content": "The answer is 42.",
}
CONVERSATIONS = {
    "one turn": [USER],
    "system": [{"role": "system", "content": "Be brief."}, USER],
    "history": [USER, ANSWER, {"role": "user", "content": "And 1 + 1?"}],
    "odd text": [{"role": "user", "content": " a\t猫 😀\r\n<|im_end|> <think> e\u0301 \u00a0 "}],
    "empty": [{"role": "user", "content": ""}],
}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
SAMPLING = Sampling(temperature=0.6, top_k=20, max_new_tokens=200)


def play(url: str, scene: Callable[[SGLangClient, ChatRenderer], Awaitable[Any]]) -> Any:
    """Run a scene with a client of the server and a renderer of the model that it serves."""

    async def run() -> Any:
        async with SGLangClient(url) as client:
            return await scene(client, renderer_of(url))

    return asyncio.run(run())


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_we_render_as_the_server_does(sglang_server: str, name: str, thinking: bool) -> None:
    messages = CONVERSATIONS[name]
    ours = renderer_of(sglang_server).render(messages, None, thinking=thinking)
    conversation = Conversation(messages, None, thinking)
    assert ours == SGLang().render(sglang_server, "", conversation, None) != []


def test_tools_are_rendered_as_the_server_does(sglang_server: str) -> None:
    # Its own rendering shows every tool with one more field, which nobody sent. What we send is
    # ids, so ours stays as the template's author meant it.
    shown = [{**TOOL, "defer_loading": None}]
    ours = renderer_of(sglang_server).render([USER], shown, thinking=True)
    conversation = Conversation([USER], [TOOL], True)
    assert ours == SGLang().render(sglang_server, "", conversation, None) != []


def test_answers_come_as_exact_ids(sglang_server: str) -> None:
    async def scene(client: SGLangClient, renderer: ChatRenderer) -> None:
        markers = renderer.markers()
        prompt = renderer.render([USER], None, thinking=True)
        requests = (
            client.generate(prompt, SAMPLING, f"dfq-test-{n:04}", markers.end_ids) for n in range(8)
        )
        for generation in await asyncio.gather(*requests):
            assert generation.prompt_ids == prompt
            assert all(0 <= token < markers.vocab_size for token in generation.output_ids)
            assert generation.latency_s
            if generation.finish_reason == "stop":
                assert generation.matched == generation.output_ids[-1]
                assert generation.matched in markers.end_ids
                assert not markers.end_ids & set(generation.output_ids[:-1])
            else:
                assert len(generation.output_ids) == SAMPLING.max_new_tokens

    play(sglang_server, scene)


def test_it_thinks_before_it_answers(sglang_server: str) -> None:
    async def scene(client: SGLangClient, renderer: ChatRenderer) -> list[list[str]]:
        ends = renderer.markers().end_ids
        prompt = renderer.render([USER], None, thinking=True)
        sampling = SAMPLING.model_copy(update={"max_new_tokens": 400})
        requests = (client.generate(prompt, sampling, f"dfq-think-{n}", ends) for n in range(8))
        generations = await asyncio.gather(*requests)
        ended = [g for g in generations if g.finish_reason == "stop"]
        return [renderer.decode(g.output_ids[:-1]).split("</think>") for g in ended]

    # The model is tiny: most of its answers are in order, not all.
    answers = play(sglang_server, scene)
    assert any(len(parts) == 2 and all(part.strip() for part in parts) for parts in answers)


def test_too_long_is_refused(sglang_server: str) -> None:
    async def scene(client: SGLangClient, renderer: ChatRenderer) -> None:
        limit = report_of(sglang_server)["max_req_input_len"] + 100
        prompt = renderer.render([USER], None, thinking=True)
        with pytest.raises(EngineRefusedError, match="context length"):
            await client.generate([prompt[0]] * limit, SAMPLING, "dfq-test-long", {2})
        over = SAMPLING.model_copy(update={"max_new_tokens": limit})
        with pytest.raises(EngineRefusedError, match="maximum context length"):
            await client.generate(prompt, over, "dfq-test-over", {2})

    play(sglang_server, scene)


def test_an_abort_is_no_sample(sglang_server: str) -> None:
    async def scene(client: SGLangClient, renderer: ChatRenderer) -> None:
        prompt = renderer.render([USER], None, thinking=True)
        endless = Sampling(max_new_tokens=2000)
        task = asyncio.create_task(client.generate(prompt, endless, "dfq-test-abort", ()))
        rest = asyncio.create_task(asyncio.wait({task}))
        while not rest.done():
            await client.abort("dfq-test-abort")
            await asyncio.wait({rest}, timeout=0.02)
        with pytest.raises(EngineRequestError, match="aborted"):
            await task

    play(sglang_server, scene)


def test_what_the_server_tells(sglang_server: str) -> None:
    async def scene(client: SGLangClient, _: ChatRenderer) -> None:
        info, metrics = report_of(sglang_server), await client.metrics()
        assert effective_running_limit(info) == lookup(
            info, "internal_states.0.effective_max_running_requests_per_dp"
        )
        assert metrics["sglang:generation_tokens_total"] > 0
        assert "sglang:realtime_tokens_total.decode" in metrics

    play(sglang_server, scene)
