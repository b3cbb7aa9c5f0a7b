"""Chat completions of the emulated engine, with the field names of SGLang or of vLLM."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import jinja2
from aiohttp import web

from tests.support.engine_emulator.template import Template

Native = Callable[[web.Request, Any], Awaitable[web.StreamResponse]]
SGLANG, VLLM, WITHOUT_IDS = "sglang", "vllm", "no-ids"
KINDS = (SGLANG, VLLM, WITHOUT_IDS)


class Chat:
    """The routes of a chat server; `native` answers what a chat request amounts to."""

    def __init__(
        self, kind: str, model: str, context_length: int, template: Template, native: Native
    ) -> None:
        self._kind, self._model, self._context_length = kind, model, context_length
        self._template, self._native = template, native

    def add_routes(self, app: web.Application) -> None:
        app.router.add_post("/v1/chat/completions", self.complete)
        app.router.add_get("/v1/models", self.models)
        if self._kind == VLLM:
            app.router.add_get("/version", self.version)

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        try:
            ids = self._template.tokens(body, defer_loading=self._kind != VLLM)
        except jinja2.TemplateError as exc:
            return web.json_response({"error": {"message": str(exc)}}, status=400)
        answer = await self._native(request, generate_request(body, ids))
        if answer.status != 200 or not isinstance(answer, web.Response) or answer.text is None:
            return answer
        try:
            native = json.loads(answer.text)
        except ValueError:
            return answer  # a fault cut it short
        wanted = bool(body.get("return_token_ids"))
        return web.json_response(completion(self._kind, self._model, native, wanted))

    async def models(self, _request: web.Request) -> web.Response:
        return web.json_response(models(self._kind, self._model, self._context_length))

    async def version(self, _request: web.Request) -> web.Response:
        return web.json_response({"version": "0.11.0"})


def keyed(key: str) -> Any:
    """A middleware that answers requests without this key with 401."""

    @web.middleware
    async def guard(request: web.Request, handler: Any) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {key}":
            return web.json_response({"error": {"message": "Unauthorized"}}, status=401)
        response: web.StreamResponse = await handler(request)
        return response

    return guard


def generate_request(body: dict[str, Any], ids: list[int]) -> dict[str, Any]:
    """The native request that a chat request amounts to."""
    return {
        "input_ids": ids,
        "rid": body.get("rid"),
        "return_prompt_token_ids": True,
        "sampling_params": {"max_new_tokens": body.get("max_completion_tokens", 128)},
    }


def completion(kind: str, model: str, body: dict[str, Any], wanted: bool) -> dict[str, Any]:
    """The chat answer for a native one; with ids if they are `wanted` and the kind has them."""
    meta, ids = body["meta_info"], body["output_ids"]
    finish = meta["finish_reason"]
    matched = finish.get("matched")
    choice: dict[str, Any] = {
        "index": 0,
        "message": {"role": "assistant", "content": body["text"]},
        "finish_reason": finish["type"],
    }
    answer: dict[str, Any] = {
        "id": meta["id"],
        "object": "chat.completion",
        "model": model,
        "choices": [choice],
        "usage": {"prompt_tokens": meta["prompt_tokens"], "completion_tokens": len(ids)},
    }
    if kind == SGLANG:
        choice["matched_stop"] = matched
    elif isinstance(matched, str):
        choice["stop_reason"] = matched  # vLLM names a stop only when it is not the usual end
    if wanted and kind == SGLANG:
        choice |= {"prompt_token_ids": body["prompt_token_ids"], "response_token_ids": ids}
    if wanted and kind == VLLM:
        choice["token_ids"] = ids
        answer["prompt_token_ids"] = body["prompt_token_ids"]
    return answer


def models(kind: str, model: str, context_length: int) -> dict[str, Any]:
    """`/v1/models`."""
    owner = "sglang" if kind == SGLANG else "vllm"
    row = {"id": model, "object": "model", "owned_by": owner, "max_model_len": context_length}
    return {"object": "list", "data": [row]}
