"""What every dialect has to do, tested against the emulated server of each."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests
from pydantic import SecretStr

from dflashq.core.errors import (
    EngineDownError,
    EngineError,
    EngineRefusedError,
    EngineRequestError,
)
from dflashq.core.model import Generation, Sampling
from dflashq.engine import http_probe
from dflashq.engine.chat_renderer import ChatRenderer
from dflashq.engine.dialects import DIALECTS
from dflashq.engine.dialects.base import Dialect, EngineClient
from dflashq.engine.profiles import Profile
from dflashq.engine.readiness import Readiness
from dflashq.engine.request import Conversation, request_ids
from dflashq.engine.startup_check import StartupCheck
from tests.support.engine_emulator import EmulatedEngine
from tests.support.engine_emulator.dialect_servers import DIALECT_SERVERS
from tests.support.engine_emulator.profile import token_options
from tests.support.supervised_engine import Supervised, profile_in, settings_in, until
from tests.support.wait import WAIT_S

KEY = SecretStr("key-of-the-server")
MODEL = "tiny"
CONVERSATION = Conversation([{"role": "user", "content": "What is 12 + 30?"}], None, True)
SHAPES = [(name, shape) for name, shapes in DIALECT_SERVERS.items() for shape in shapes]
IDS = ["-".join(pair) for pair in SHAPES]
Call = Callable[[EngineClient], Any]


@dataclass(frozen=True)
class Case:
    """One dialect and a running server that speaks it; `options` are those of its shape."""

    name: str
    engine: EmulatedEngine
    renderer: ChatRenderer
    options: dict[str, Any]

    @property
    def dialect(self) -> Dialect:
        return DIALECTS[self.name]

    @property
    def profile(self) -> Profile:
        return profile_of(self.name, self.renderer.model_dir)

    @property
    def ends(self) -> frozenset[int]:
        return self.renderer.markers().end_ids

    def report(self) -> dict[str, Any]:
        return self.dialect.report(self.profile, self.engine.url, KEY)

    def prompt_ids(self, conversation: Conversation = CONVERSATION) -> list[int]:
        thinking, tools = conversation.thinking, conversation.tools
        return self.renderer.render(conversation.messages, tools, thinking=thinking)

    def run(self, call: Call, url: str = "", key: SecretStr | None = KEY) -> Any:
        """What `call` returns for a client that is open meanwhile."""

        async def scene() -> Any:
            report = {"served_model_name": MODEL}
            client = self.dialect.new_client(self.profile, url or self.engine.url, report, key)
            await client.open()
            try:
                return await call(client)
            finally:
                await client.close()

        return asyncio.run(scene())

    def generate(self, url: str = "", key: SecretStr | None = KEY, **sampling: Any) -> Generation:
        generation: Generation = self.run(lambda c: self.request(c, **sampling), url, key)
        return generation

    async def request(self, client: EngineClient, **sampling: Any) -> Generation:
        return await client.generate(
            self.prompt_ids(), Sampling(**sampling), next(request_ids()), self.ends, CONVERSATION
        )


def profile_of(name: str, model_dir: Path, **launch: Any) -> Profile:
    launch = {"kind": "external", "dialect": name, "url": "http://server", **launch}
    model = {"id": MODEL, "path": str(model_dir)}
    return Profile.model_validate({"name": "conformance", "model": model, "launch": launch})


@pytest.fixture(scope="module", params=SHAPES, ids=IDS)
def case(request: pytest.FixtureRequest, tiny_model: Path) -> Iterator[Case]:
    name, shape = request.param
    options = {"model": MODEL, "tokenizer": tiny_model, "api_key": KEY.get_secret_value()}
    options |= token_options(tiny_model) | {"lengths": "uniform:20:60", "slots": 4}
    shape_options = DIALECT_SERVERS[name][shape]
    with EmulatedEngine(**options | shape_options) as engine:
        yield Case(name, engine, ChatRenderer(tiny_model), shape_options)


@pytest.fixture(autouse=True)
def _no_faults(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "case" in request.fixturenames:
        request.getfixturevalue("case").engine.set_faults()


def test_every_dialect_has_a_server_in_the_emulator() -> None:
    """Add the shape of a new dialect's server to `dialect_servers.py`."""
    assert {name for name, shapes in DIALECT_SERVERS.items() if shapes} == set(DIALECTS)


def test_a_profile_may_name_every_dialect_and_no_other(tiny_model: Path) -> None:
    for name in DIALECTS:
        assert profile_of(name, tiny_model).launch.dialect == name
    with pytest.raises(ValueError, match="'grpc' is none of 'sglang', 'openai'"):
        profile_of("grpc", tiny_model)


# --- questions from a thread


def test_the_alive_path_answers_without_generating(case: Case) -> None:
    before = case.engine.stats()["received"]
    http_probe.get_json(case.engine.url + case.dialect.alive_path, KEY)
    assert case.engine.stats()["received"] == before


def test_the_report_names_the_model(case: Case) -> None:
    assert case.report()["served_model_name"] == MODEL


def test_the_probe_generates_one_token(case: Case) -> None:
    before = case.engine.stats()["generated"]
    case.dialect.probe(case.profile, case.engine.url, case.report(), KEY, 1)
    assert case.engine.stats()["generated"] == before + 1


def test_a_server_becomes_ready_and_passes_the_startup_check(case: Case) -> None:
    ready = Readiness(case.profile, case.engine.url, KEY)
    assert ready.reached()
    check = StartupCheck(case.profile, case.renderer, KEY)
    assert check.check(case.engine.url, ready.server_info) > 6


@pytest.mark.parametrize("thinking", [True, False])
def test_the_servers_rendering_is_ours(case: Case, thinking: bool) -> None:
    call = {"name": "weather", "arguments": {"city": "Turin", "days": 2}}
    messages = [
        {"role": "user", "content": "Warm?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c0", "type": "function", "function": call}],
        },
        {"role": "user", "content": "And now? 猫"},
    ]
    conversation = Conversation(messages, None, thinking)
    theirs = case.dialect.render(case.engine.url, MODEL, conversation, KEY)
    assert theirs == case.prompt_ids(conversation)


def test_generate_once_is_what_the_client_generates(case: Case) -> None:
    once = case.dialect.generate_once(
        case.engine.url,
        MODEL,
        CONVERSATION,
        case.prompt_ids(),
        Sampling(max_new_tokens=100),
        case.ends,
        KEY,
    )
    generation = case.generate(max_new_tokens=100)
    assert once.output_ids == generation.output_ids
    assert once.prompt_ids == generation.prompt_ids


# --- generations


def test_a_generation_has_exact_ids_and_ends_with_an_end_token(case: Case) -> None:
    generation = case.generate()
    assert generation.prompt_ids == case.prompt_ids()
    assert generation.finish_reason == "stop"
    assert generation.matched == generation.output_ids[-1]
    assert generation.matched in case.ends
    assert 20 <= len(generation.output_ids) <= 60
    assert generation.output_ids == case.generate().output_ids


def test_a_generation_of_the_greatest_length_has_no_match(case: Case) -> None:
    generation = case.generate(max_new_tokens=5)
    assert (generation.finish_reason, generation.matched) == ("length", None)
    assert generation.output_ids == case.generate().output_ids[:5]


def test_an_end_that_nobody_asked_for_is_passed_on(case: Case) -> None:
    case.engine.set_faults(nan=1.0)
    assert case.generate().matched == "NaN happened"


def test_ids_of_another_prompt_are_no_sample(case: Case) -> None:
    case.engine.set_faults(altered_prompt=1.0)
    with pytest.raises((EngineRefusedError, EngineRequestError)):
        case.generate()


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, EngineRefusedError),
        (413, EngineRefusedError),
        (422, EngineRefusedError),
        (401, EngineRequestError),
        (404, EngineRequestError),
        (429, EngineRequestError),
        (500, EngineRequestError),
        (503, EngineRequestError),
    ],
)
def test_a_status_is_the_prompts_or_the_engines_fault(
    case: Case, status: int, kind: type[EngineError]
) -> None:
    case.engine.set_faults(every_status=status, retry_after_s=7)
    with pytest.raises(kind, match=f"HTTP {status}") as caught:
        case.generate()
    if isinstance(caught.value, EngineRequestError):
        assert caught.value.status == status
        assert caught.value.retry_after_s == (7 if status in (429, 503) else 0)
    with pytest.raises(requests.HTTPError):
        case.dialect.probe(case.profile, case.engine.url, {"served_model_name": MODEL}, KEY, 1)


@pytest.mark.parametrize("fault", ["abort", "garbage"])
def test_an_aborted_or_broken_answer_is_no_sample(case: Case, fault: str) -> None:
    case.engine.set_faults(**{fault: 1.0})
    with pytest.raises(EngineRequestError, match="aborted" if fault == "abort" else "no JSON"):
        case.generate()


def test_a_closed_connection_is_down_and_may_be_the_prompts_fault(case: Case) -> None:
    case.engine.set_faults(reset=1.0)
    with pytest.raises(EngineDownError) as caught:
        case.generate()
    assert caught.value.delivered


def test_no_server_is_down_and_no_fault_of_the_prompt(case: Case) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(EngineDownError) as caught:
            case.generate(url)
        assert not caught.value.delivered
        with pytest.raises(requests.ConnectionError):
            case.dialect.report(case.profile, url, KEY)


def test_a_server_that_hangs_ends_the_probe_by_its_time_limit(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_probe, "ANSWER_S", (3.0, 0.3))
    case.engine.set_faults(hang=True)
    with pytest.raises(requests.Timeout):
        case.dialect.probe(case.profile, case.engine.url, {"served_model_name": MODEL}, KEY, 1)


def test_a_server_that_hangs_does_not_become_ready(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_probe, "ANSWER_S", (3.0, 0.3))
    case.engine.set_faults(hang=True)
    ready = Readiness(case.profile, case.engine.url, KEY)
    assert not ready.reached()
    assert ready.missing == "it listens, but generates nothing"


async def running(engine: EmulatedEngine, count: int) -> None:
    """Return when this many requests run in the engine."""
    async with asyncio.timeout(WAIT_S):
        while (await asyncio.to_thread(engine.stats))["running"] != count:
            await asyncio.sleep(0.01)


def test_a_cancelled_generation_frees_the_engine(case: Case) -> None:
    case.engine.set_faults(hang_requests=1.0)

    async def scene(client: EngineClient) -> None:
        tasks = [asyncio.create_task(case.request(client)) for _ in range(3)]
        await running(case.engine, 3)
        tasks[0].cancel()
        await running(case.engine, 2)
        assert not any(task.done() for task in tasks[1:])
        for task in tasks:
            task.cancel()
        await running(case.engine, 0)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert all(task.cancelled() for task in tasks)

    case.run(scene)


def test_dropped_requests_are_down_and_later_ones_are_served(case: Case) -> None:
    case.engine.set_faults(hang_requests=1.0)

    async def scene(client: EngineClient) -> None:
        tasks = [asyncio.create_task(case.request(client)) for _ in range(2)]
        await running(case.engine, 2)
        await client.drop_requests()
        for task in tasks:
            with pytest.raises(EngineDownError):
                await asyncio.wait_for(task, WAIT_S)
        await running(case.engine, 0)
        await asyncio.to_thread(case.engine.set_faults)
        assert (await case.request(client)).output_ids

    case.run(scene)


# --- the key


def test_every_request_carries_the_key(case: Case) -> None:
    """The server refuses those that do not; a wrong key is no fault of the prompt."""
    for key in (None, SecretStr("wrong")):
        with pytest.raises(EngineRequestError, match="HTTP 401"):
            case.generate(key=key)
        ready = Readiness(case.profile, case.engine.url, key)
        assert not ready.reached()
        assert ready.missing == "it asks for a key: set DFLASHQ_ENGINE_API_KEY"


def test_a_server_of_ours_never_sees_the_key(case: Case, tmp_path: Path, tiny_model: Path) -> None:
    """Through its whole life: readiness, start-up check, metrics."""
    launch = {"dialect": case.name}
    profile = profile_in(tmp_path, tiny_model, launch=launch, expect={}, **case.options)
    check = StartupCheck(profile, case.renderer, None).check
    with Supervised(tmp_path, profile, {"engine_api_key": KEY}, check=check) as engine:

        def stats() -> dict[str, Any]:
            body: dict[str, Any] = requests.get(f"{engine.ready[0]}/stats", timeout=WAIT_S).json()
            return body

        until(lambda: stats()["requests"].get("/metrics", 0) > 1, "its metrics are read")
        assert stats()["received"] > 1
        assert stats()["keyed"] == {}


def test_the_key_of_the_settings_is_for_external_servers(tmp_path: Path, tiny_model: Path) -> None:
    settings = settings_in(tmp_path, engine_api_key=KEY)
    for name in DIALECTS:
        assert profile_of(name, tiny_model).api_key(settings) == KEY
        own = profile_of(name, tiny_model, kind="command", argv=["server"])
        assert own.api_key(settings) is None
        assert profile_of(name, tiny_model, kind="sglang").api_key(settings) is None
