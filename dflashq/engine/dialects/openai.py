"""Chat completions with token ids: the dialect of vLLM, and of any server that returns them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

from pydantic import SecretStr

from dflashq.core.errors import EngineError, EngineRefusedError, EngineRequestError
from dflashq.core.model import Generation, Message, Sampling
from dflashq.engine.http_session import (
    ASIDE_S,
    EngineHttpSession,
    malformed,
    number,
    table,
    token_ids,
)
from dflashq.engine.request import Conversation, TokenObserver

# SGLang names them by choice, vLLM has the prompt's beside the choices.
_OUTPUT_NAMES = ("token_ids", "response_token_ids")
_ENDED = ("stop", "tool_calls", "function_call")


class OpenAIClient(EngineHttpSession):
    """The client of one chat server; the server renders, and its ids must be those we render."""

    def __init__(self, base_url: str, model: str, api_key: SecretStr | None = None) -> None:
        super().__init__(base_url, api_key)
        self.model = model

    async def generate(
        self,
        prompt_ids: list[int],
        sampling: Sampling,
        rid: str,
        end_ids: Iterable[int],
        conversation: Conversation | None = None,
        watch: TokenObserver | None = None,
    ) -> Generation:
        """One assistant turn for `conversation`, with the ids exactly as sampled.

        EngineRefusedError also when the server renders the conversation to other ids than
        `prompt_ids`; the other errors and the rules for `rid` are those of `SGLangClient`.
        """
        del watch  # neither server streams ids with a chat answer
        if conversation is None:
            raise EngineError("chat completions need the conversation, not only its ids.")
        ends = frozenset(end_ids)
        body = chat_body(self.model, conversation, sampling, rid, ends)
        try:
            answer = await self.json("POST", "/v1/chat/completions", body, limit_s=None)
        except asyncio.CancelledError:
            # vLLM stops when the connection is dropped; SGLang listens to this.
            self.errand(self._abort(rid), f"aborting {rid}")
            raise
        return read_chat(answer, prompt_ids, ends)

    async def _abort(self, rid: str) -> None:
        body = json.dumps({"rid": rid, "abort_all": False}).encode()
        await self.request("POST", "/abort_request", body, ASIDE_S)


def chat_body(
    model: str,
    conversation: Conversation,
    sampling: Sampling,
    rid: str,
    end_ids: Iterable[int],
) -> dict[str, Any]:
    """The request of one turn, with every sampling parameter spelled out."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [_spoken(message) for message in conversation.messages],
        "chat_template_kwargs": {"enable_thinking": conversation.thinking},
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "max_completion_tokens": sampling.max_new_tokens,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "stop_token_ids": sorted(end_ids),
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
        "n": 1,
        "stream": False,
        "return_token_ids": True,
        "rid": rid,
        "request_id": rid,
    }
    return body | ({"tools": conversation.tools} if conversation.tools else {})


def prompt_ids_of(answer: Any) -> list[int] | None:
    """The prompt's ids in a chat answer, by either name; None when it carries none."""
    choice = _choice(answer)
    ids = answer.get("prompt_token_ids") or choice.get("prompt_token_ids")
    return None if ids is None else token_ids(ids, "prompt_token_ids")


def output_ids_of(answer: Any) -> list[int] | None:
    """The answer's ids in a chat answer, by either name; None when it carries none."""
    choice = _choice(answer)
    ids = next((choice[name] for name in _OUTPUT_NAMES if choice.get(name) is not None), None)
    return None if ids is None else token_ids(ids, "token_ids")


def read_chat(answer: Any, prompt_ids: list[int], end_ids: frozenset[int]) -> Generation:
    """The Generation in a 200 answer; EngineRequestError when it is an abort or malformed.

    EngineRefusedError when it answers a prompt that we render differently.
    """
    choice = _choice(answer)
    reason = choice.get("finish_reason")
    if reason == "abort":
        raise EngineRequestError("the engine aborted the request.")
    if reason != "length" and reason not in _ENDED:
        raise malformed(f"its finish reason is {reason!r}")
    theirs, output_ids = prompt_ids_of(answer), output_ids_of(answer)
    if theirs is None or output_ids is None:
        raise malformed("it carries no token ids")
    usage = table(answer.get("usage"), "usage")
    if usage.get("completion_tokens") != len(output_ids):
        raise malformed(
            f"it counts {usage.get('completion_tokens')} tokens and carries {len(output_ids)}"
        )
    if theirs != prompt_ids:
        raise EngineRefusedError(
            f"the engine rendered this conversation to {len(theirs)} ids that are not the "
            f"{len(prompt_ids)} of our tokenizer and chat template; its answer was dropped"
        )
    meta = choice.get("meta_info") or {}
    kind = "length" if reason == "length" else "stop"
    return Generation(
        prompt_ids=prompt_ids,
        output_ids=output_ids,
        finish_reason=kind,
        matched=_matched(choice, output_ids, end_ids) if kind == "stop" else None,
        spec_accept_length=number(meta.get("spec_accept_length")),
        latency_s=number(meta.get("e2e_latency")),
    )


def _matched(choice: dict[str, Any], output_ids: list[int], ends: frozenset[int]) -> Any:
    """What ended the answer: as the server says, else the end token that stands last."""
    for name in ("matched_stop", "stop_reason"):
        if isinstance(choice.get(name), int | str):
            return choice[name]
    return output_ids[-1] if output_ids and output_ids[-1] in ends else None


def _choice(answer: Any) -> dict[str, Any]:
    choices = table(answer, "the completion").get("choices")
    if not isinstance(choices, list) or len(choices) != 1:
        raise malformed("it does not hold one choice")
    return table(choices[0], "choices")


def _spoken(message: Message) -> Message:
    """A message as the API takes it: the arguments of a tool call are JSON text there."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    spoken = [{**call, "function": _text_arguments(call["function"])} for call in calls]
    return {**message, "tool_calls": spoken}


def _text_arguments(function: dict[str, Any]) -> dict[str, Any]:
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        return function
    return {**function, "arguments": json.dumps(arguments, ensure_ascii=False)}
