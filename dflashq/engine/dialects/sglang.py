"""SGLang's native API: token ids in, token ids out."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterable
from typing import Any

from pydantic import SecretStr

from dflashq.core.errors import EngineRequestError
from dflashq.core.model import Generation, Sampling
from dflashq.engine.http_probe import GENERATE_S, get_json, post_json
from dflashq.engine.http_session import (
    CONTROL_S,
    EngineHttpSession,
    json_object,
    malformed,
    number,
    token_ids,
)
from dflashq.engine.profiles import Profile
from dflashq.engine.request import Conversation, TokenObserver, startup_request_id
from dflashq.engine.stats import parse_metrics


class SGLang:
    """The native dialect: `/generate`, `/server_info`, `/v1/tokenize`. See `Dialect`."""

    alive_path = "/server_info"

    def new_client(
        self, profile: Profile, base_url: str, server_info: dict[str, Any], key: SecretStr | None
    ) -> SGLangClient:
        """A client that is not open yet; it streams as `[launch] stream_every` says."""
        del server_info  # the native API needs no model name
        return SGLangClient(base_url, key, stream_every=profile.launch.stream_every)

    def report(self, profile: Profile, base_url: str, key: SecretStr | None) -> dict[str, Any]:
        """`/server_info`: every resolved argument, and the state of the scheduler."""
        del profile  # `profile_match.check_server` compares the model
        return json_object(get_json(f"{base_url}/server_info", key), "/server_info")

    def probe(
        self,
        profile: Profile,
        base_url: str,
        server_info: dict[str, Any],
        key: SecretStr | None,
        attempt: int,
    ) -> None:
        """Generate one token from two ids; other ids each time, as a prompt may be refused."""
        del profile, server_info
        sampling = {"max_new_tokens": 1, "temperature": 0.0}
        body = {"input_ids": [1, 1 + attempt % 100], "sampling_params": sampling}
        post_json(f"{base_url}/generate", body, key)

    def render(
        self, base_url: str, model: str, conversation: Conversation, key: SecretStr | None
    ) -> list[int]:
        """The ids that `/v1/tokenize` returns for a conversation."""
        del model  # the server has only one
        body: dict[str, Any] = {
            "messages": conversation.messages,
            "chat_template_kwargs": {"enable_thinking": conversation.thinking},
        }
        body |= {"tools": conversation.tools} if conversation.tools else {}
        answer = post_json(f"{base_url}/v1/tokenize", body, key, GENERATE_S)
        return token_ids(json_object(answer, "/v1/tokenize").get("tokens"), "tokens")

    def generate_once(
        self,
        base_url: str,
        model: str,
        conversation: Conversation,
        prompt_ids: list[int],
        sampling: Sampling,
        end_ids: frozenset[int],
        key: SecretStr | None,
    ) -> Generation:
        """One short generation from `prompt_ids`; `conversation` is not used."""
        del model, conversation
        body = generate_body(prompt_ids, sampling, startup_request_id(), end_ids)
        answer = post_json(f"{base_url}/generate", body, key, GENERATE_S)
        return parse_generate_response(answer, prompt_ids)


class SGLangClient(EngineHttpSession):
    """The client of one SGLang server; `EngineHttpSession` describes its life cycle.

    `stream_every`: after how many new ids a long generation sends a piece to its observer; 0: it
    is never streamed. Streaming needs a server started with --incremental-streaming-output.
    """

    def __init__(
        self, base_url: str, api_key: SecretStr | None = None, *, stream_every: int = 0
    ) -> None:
        super().__init__(base_url, api_key)
        self._stream_every = stream_every

    async def generate(
        self,
        prompt_ids: list[int],
        sampling: Sampling,
        rid: str,
        end_ids: Iterable[int],
        conversation: Conversation | None = None,
        watch: TokenObserver | None = None,
    ) -> Generation:
        """One assistant turn, as `EngineClient.generate` says; `conversation` is not used.

        `watch` is called for generations that may be longer than two pieces of `stream_every`.
        A cancelled task aborts its request: SGLang notices a closed connection only seconds later.
        """
        del conversation  # the server gets its ids
        body = generate_body(prompt_ids, sampling, rid, end_ids)
        # A short answer ends before its observer could see a second piece.
        every = self._stream_every if sampling.max_new_tokens > 2 * self._stream_every else 0
        try:
            if watch is not None and every:
                answer = await self._generate_streamed(body, every, watch)
            else:
                answer = await self.json("POST", "/generate", body, limit_s=None)
        except asyncio.CancelledError:
            self.run_in_background(self.abort(rid), f"aborting {rid}")
            raise
        return parse_generate_response(answer, prompt_ids)

    async def _generate_streamed(
        self, body: dict[str, Any], every: int, watch: TokenObserver
    ) -> dict[str, Any]:
        """The complete answer of a streamed request; an exception of `watch` aborts it."""
        sampling = {**body["sampling_params"], "stream_interval": every}
        streamed = {**body, "stream": True, "sampling_params": sampling}
        ids: list[int] = []
        async with contextlib.aclosing(self.events("/generate", streamed)) as pieces:
            async for piece in pieces:
                ids += token_ids(piece.get("output_ids"), "output_ids")
                meta = json_object(piece.get("meta_info"), "meta_info")
                if meta.get("finish_reason") is not None:
                    return {**piece, "output_ids": ids}
                try:
                    watch(ids)
                except BaseException:
                    self.run_in_background(self.abort(body["rid"]), f"aborting {body['rid']}")
                    raise
        raise malformed("its stream ended before the answer did")

    async def abort(self, rid: str) -> None:
        """Have the server stop one request; its `generate` then raises EngineRequestError.

        Safe to repeat, also for a request that has ended.
        """
        body = json.dumps({"rid": rid, "abort_all": False}).encode()
        await self.request("POST", "/abort_request", body, CONTROL_S)

    async def metrics(self) -> dict[str, float]:
        """Counters and gauges by name (`sglang:num_running_reqs`), summed over labels.

        `sglang:realtime_tokens_total.decode` grows every few dozen steps of the engine;
        `sglang:generation_tokens_total` grows only when a request ends. Errors of `request`.
        """
        return parse_metrics((await self.request("GET", "/metrics", None, CONTROL_S)).decode())


def generate_body(
    prompt_ids: list[int], sampling: Sampling, rid: str, end_ids: Iterable[int]
) -> dict[str, Any]:
    """The request body of one generation, with every sampling parameter.

    The native API ignores the model's own defaults (it takes 128 new tokens, temperature 1).
    Penalties are only approximated under speculation, so they are neutral.
    """
    return {
        "input_ids": prompt_ids,
        "rid": rid,
        "sampling_params": {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "max_new_tokens": sampling.max_new_tokens,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "repetition_penalty": 1.0,
            "stop_token_ids": sorted(end_ids),
            "no_stop_trim": True,
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
        },
        "stream": False,
        "return_logprob": False,
        "return_prompt_token_ids": True,
    }


def parse_generate_response(answer: Any, prompt_ids: list[int]) -> Generation:
    """The Generation in the JSON of a 200 answer to `generate_body`.

    EngineRequestError when the request was aborted, or the answer is malformed or answers another
    prompt than `prompt_ids`.
    """
    row = json_object(answer, "/generate")
    meta = json_object(row.get("meta_info"), "meta_info")
    finish = json_object(meta.get("finish_reason"), "finish_reason")
    kind = finish.get("type")
    if kind == "abort":
        raise EngineRequestError(f"the engine aborted the request: {finish.get('message')}.")
    if kind not in ("stop", "length"):
        raise malformed(f"its finish reason is {kind!r}")
    output_ids = token_ids(row.get("output_ids"), "output_ids")
    if meta.get("completion_tokens") != len(output_ids):
        raise malformed(
            f"it counts {meta.get('completion_tokens')} tokens and carries {len(output_ids)}"
        )
    if row.get("prompt_token_ids") != prompt_ids:
        raise malformed("it does not answer the prompt that was sent (prompt_token_ids differ)")
    matched = finish.get("matched")
    return Generation(
        prompt_ids=prompt_ids,
        output_ids=output_ids,
        finish_reason=kind,
        matched=matched if isinstance(matched, int | str) else None,
        spec_accept_length=number(meta.get("spec_accept_length")),
        latency_s=number(meta.get("e2e_latency")),
    )
