"""SGLang's native API: exact ids in, exact ids out, and every way in which it can fail."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterable
from typing import Any

from pydantic import SecretStr

from dflashq.core.errors import EngineError, EngineRequestError
from dflashq.core.model import Generation, Message, Sampling
from dflashq.engine.http_session import (
    ASIDE_S,
    EngineHttpSession,
    malformed,
    number,
    table,
    token_ids,
)
from dflashq.engine.profile_match import effective_running_limit
from dflashq.engine.request import Conversation, TokenObserver
from dflashq.engine.stats import parse_metrics

__all__ = ["SGLangClient", "effective_running_limit", "parse_metrics"]


class SGLangClient(EngineHttpSession):
    """The client of one SGLang server, through `/generate`.

    `EngineHttpSession` says how it is used.

    `stream_every`: how many new ids make a piece of a long generation that is watched; 0 for
    answers in one piece only. The server must be started with --incremental-streaming-output.
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
        """One assistant turn for `prompt_ids`, with the ids exactly as sampled.

        `rid` must be unique and of fixed length (the server aborts by prefix). Raises
        EngineRefusedError (this prompt, for good), EngineRequestError (any other failure, also an
        abort and a malformed answer), EngineDownError (no answer).
        Safe to repeat with another rid. `watch` sees the ids so far of a streamed answer; what it
        raises ends the generation. Cancelling it aborts the request on the engine, which by
        itself notices a dropped connection only after seconds.
        """
        del conversation  # the ids say all
        body = generate_body(prompt_ids, sampling, rid, end_ids)
        # A short answer is over before there would be a second piece to look at.
        every = self._stream_every if sampling.max_new_tokens > 2 * self._stream_every else 0
        try:
            if watch is not None and every:
                answer = await self._watched(body, every, watch)
            else:
                answer = await self.json("POST", "/generate", body, limit_s=None)
        except asyncio.CancelledError:
            self.errand(self.abort(rid), f"aborting {rid}")
            raise
        return read_generation(answer, prompt_ids)

    async def _watched(
        self, body: dict[str, Any], every: int, watch: TokenObserver
    ) -> dict[str, Any]:
        """The whole answer of a streamed request; `watch` sees each piece and may end it."""
        sampling = {**body["sampling_params"], "stream_interval": every}
        asked = {**body, "stream": True, "sampling_params": sampling}
        ids: list[int] = []
        async with contextlib.aclosing(self.events("/generate", asked)) as pieces:
            async for piece in pieces:
                ids += token_ids(piece.get("output_ids"), "output_ids")
                if table(piece.get("meta_info"), "meta_info").get("finish_reason") is not None:
                    return {**piece, "output_ids": ids}
                try:
                    watch(ids)
                except BaseException:
                    self.errand(self.abort(body["rid"]), f"aborting {body['rid']}")
                    raise
        raise malformed("its stream ended before the answer did")

    async def server_info(self) -> dict[str, Any]:
        """All resolved arguments and state of the server. Same errors as `generate`."""
        return table(await self.json("GET", "/server_info"), "/server_info")

    async def tokenize(
        self, messages: list[Message], tools: list[dict[str, Any]] | None, thinking: bool
    ) -> list[int]:
        """The server's own rendering of a conversation, to compare with ours."""
        body = tokenize_body(Conversation(messages, tools, thinking))
        answer = table(await self.json("POST", "/v1/tokenize", body), "/v1/tokenize")
        return token_ids(answer.get("tokens"), "tokens")

    async def abort(self, rid: str) -> None:
        """Stop one request; its `generate` then ends with EngineRequestError. Safe to repeat."""
        body = json.dumps({"rid": rid, "abort_all": False}).encode()
        await self.request("POST", "/abort_request", body, ASIDE_S)

    async def health(self) -> bool:
        """True when the server calls itself healthy; it may still be stuck, and the reverse."""
        try:
            await self.request("GET", "/health", None, ASIDE_S)
        except EngineError:
            return False
        return True

    async def metrics(self) -> dict[str, float]:
        """Counters and gauges by name (`sglang:num_running_reqs`), summed over labels.

        `sglang:realtime_tokens_total.decode` moves every few dozen steps of the engine, while
        `sglang:generation_tokens_total` counts a request only when it has ended.
        """
        return parse_metrics((await self.request("GET", "/metrics", None, ASIDE_S)).decode())


def tokenize_body(conversation: Conversation) -> dict[str, Any]:
    """The request that has the server render a conversation."""
    body: dict[str, Any] = {
        "messages": conversation.messages,
        "chat_template_kwargs": {"enable_thinking": conversation.thinking},
    }
    return body | ({"tools": conversation.tools} if conversation.tools else {})


def generate_body(
    prompt_ids: list[int], sampling: Sampling, rid: str, end_ids: Iterable[int]
) -> dict[str, Any]:
    """The request of one generation: every sampling parameter is spelled out.

    The native API knows no model defaults (128 new tokens, temperature 1), and penalties are not
    exact under speculation, so they are neutral.
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


def read_generation(answer: Any, prompt_ids: list[int]) -> Generation:
    """The Generation in a 200 answer; EngineRequestError when it is an abort or malformed."""
    row = table(answer, "/generate")
    meta = table(row.get("meta_info"), "meta_info")
    finish = table(meta.get("finish_reason"), "finish_reason")
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
