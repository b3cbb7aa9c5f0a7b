"""Chat completions that return token ids: the API of vLLM, and of SGLang beside its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

import requests
from pydantic import SecretStr

from dflashq.core.errors import (
    EngineError,
    EngineMismatchError,
    EngineRefusedError,
    EngineRequestError,
)
from dflashq.core.model import Generation, Message, Sampling
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

_PATH = "/v1/chat/completions"
# The field with the ids of the answer: vLLM's name, then SGLang's.
_OUTPUT_NAMES = ("token_ids", "response_token_ids")
_STOP_REASONS = ("stop", "tool_calls", "function_call")
_ONE_TOKEN = Sampling(temperature=0.0, max_new_tokens=1)
_PROBE_MESSAGES: list[Message] = [{"role": "user", "content": "Say something."}]


class OpenAIChat:
    """The chat dialect: `/v1/chat/completions` with `return_token_ids`. See `Dialect`."""

    alive_path = "/v1/models"

    def new_client(
        self, profile: Profile, base_url: str, server_info: dict[str, Any], key: SecretStr | None
    ) -> OpenAIClient:
        """A client, not open yet, of the model that `report` chose."""
        del profile
        return OpenAIClient(base_url, str(server_info["served_model_name"]), key)

    def report(self, profile: Profile, base_url: str, key: SecretStr | None) -> dict[str, Any]:
        """The model's entry of `/v1/models`; also `/version` and `/server_info`, where they exist.

        The only model of a server may have any name. EngineMismatchError when it lists none, or
        several and none has the id of the profile's model.
        """
        listed = json_object(get_json(f"{base_url}/v1/models", key), "/v1/models").get("data")
        models = {str(row.get("id")): row for row in listed or [] if isinstance(row, dict)}
        name = profile.model.id
        if name not in models:
            if len(models) != 1:
                raise EngineMismatchError(
                    f"the server at {base_url} does not serve {name!r} but "
                    f"{', '.join(models) or 'nothing'}; no prompt was sent to it. Set model.id of "
                    f"profile {profile.name!r} to the model that you mean."
                )
            [name] = models
        report: dict[str, Any] = {}
        for path in ("/version", "/server_info"):
            try:
                extra = get_json(base_url + path, key)
            except requests.RequestException:
                continue  # not every server has them
            report |= extra if isinstance(extra, dict) else {}
        length = models[name].get("max_model_len")
        report |= {} if length is None else {"max_model_len": length}
        return report | {"served_model_name": name}

    def probe(
        self,
        profile: Profile,
        base_url: str,
        server_info: dict[str, Any],
        key: SecretStr | None,
        attempt: int,
    ) -> None:
        """Generate one token of a chat answer.

        EngineMismatchError when the answer has no token ids: such a server cannot be used.
        """
        del attempt  # this conversation is one that every chat server takes
        conversation = Conversation(_PROBE_MESSAGES, None, profile.model.thinking)
        model = str(server_info["served_model_name"])
        body = chat_body(model, conversation, _ONE_TOKEN, "probe", ())
        answer = post_json(base_url + _PATH, body, key)
        try:
            complete = bool(prompt_ids_of(answer)) and bool(output_ids_of(answer))
        except EngineRequestError:
            complete = False
        if not complete:
            raise EngineMismatchError(
                f"the server at {base_url} does not return token ids with its chat answers; "
                "no prompt was sent to it. Without the exact ids there is no sample: use a server "
                "that takes `return_token_ids`, such as vLLM 0.10.2 or later, or SGLang."
            )

    def render(
        self, base_url: str, model: str, conversation: Conversation, key: SecretStr | None
    ) -> list[int]:
        """The prompt ids that a chat answer of one token returns."""
        body = chat_body(model, conversation, _ONE_TOKEN, startup_request_id(), ())
        ids = prompt_ids_of(post_json(base_url + _PATH, body, key, GENERATE_S))
        if ids is None:
            raise malformed("it carries no prompt_token_ids")
        return ids

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
        """One short chat answer; the prompt ids of the result are those of the server."""
        body = chat_body(model, conversation, sampling, startup_request_id(), end_ids)
        answer = post_json(base_url + _PATH, body, key, GENERATE_S)
        return parse_chat_response(answer, prompt_ids_of(answer) or prompt_ids, end_ids)


class OpenAIClient(EngineHttpSession):
    """The client of one chat server, which renders the conversation itself.

    `EngineHttpSession` describes its life cycle. `model`: the name under which it is served.
    """

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
        """One assistant turn, as `EngineClient.generate` says; `conversation` is required.

        EngineRefusedError also when the server renders the conversation to other ids than
        `prompt_ids`: the answer then belongs to another prompt. `watch` is not called.
        """
        del watch  # neither vLLM nor SGLang streams ids with a chat answer
        if conversation is None:
            raise EngineError("chat completions need the conversation, not only its ids.")
        ends = frozenset(end_ids)
        body = chat_body(self.model, conversation, sampling, rid, ends)
        try:
            answer = await self.json("POST", _PATH, body, limit_s=None)
        except asyncio.CancelledError:
            # vLLM stops when the connection closes. SGLang needs this; vLLM answers 404.
            self.run_in_background(self._abort(rid), f"aborting {rid}")
            raise
        return parse_chat_response(answer, prompt_ids, ends)

    async def _abort(self, rid: str) -> None:
        body = json.dumps({"rid": rid, "abort_all": False}).encode()
        await self.request("POST", "/abort_request", body, CONTROL_S)


def chat_body(
    model: str,
    conversation: Conversation,
    sampling: Sampling,
    rid: str,
    end_ids: Iterable[int],
) -> dict[str, Any]:
    """The request body of one turn, with every sampling parameter."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [_openai_message(message) for message in conversation.messages],
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
    """The prompt's ids in a chat answer of vLLM or SGLang; None when it carries none.

    EngineRequestError when the answer is malformed.
    """
    choice = _choice(answer)
    ids = answer.get("prompt_token_ids") or choice.get("prompt_token_ids")
    return None if ids is None else token_ids(ids, "prompt_token_ids")


def output_ids_of(answer: Any) -> list[int] | None:
    """The generated ids in a chat answer of vLLM or SGLang; None when it carries none.

    EngineRequestError when the answer is malformed.
    """
    choice = _choice(answer)
    ids = next((choice[name] for name in _OUTPUT_NAMES if choice.get(name) is not None), None)
    return None if ids is None else token_ids(ids, "token_ids")


def parse_chat_response(answer: Any, prompt_ids: list[int], end_ids: frozenset[int]) -> Generation:
    """The Generation in the JSON of a 200 answer to `chat_body`.

    EngineRequestError when the request was aborted or the answer is malformed, EngineRefusedError
    when the server's prompt ids are not `prompt_ids`.
    """
    choice = _choice(answer)
    reason = choice.get("finish_reason")
    if reason == "abort":
        raise EngineRequestError("the engine aborted the request.")
    if reason != "length" and reason not in _STOP_REASONS:
        raise malformed(f"its finish reason is {reason!r}")
    their_ids, output_ids = prompt_ids_of(answer), output_ids_of(answer)
    if their_ids is None or output_ids is None:
        raise malformed("it carries no token ids")
    usage = json_object(answer.get("usage"), "usage")
    if usage.get("completion_tokens") != len(output_ids):
        raise malformed(
            f"it counts {usage.get('completion_tokens')} tokens and carries {len(output_ids)}"
        )
    if their_ids != prompt_ids:
        raise EngineRefusedError(
            f"the engine rendered this conversation to {len(their_ids)} ids that are not the "
            f"{len(prompt_ids)} of our tokenizer and chat template; its answer was dropped"
        )
    meta = choice.get("meta_info") or {}
    finish_reason = "length" if reason == "length" else "stop"
    return Generation(
        prompt_ids=prompt_ids,
        output_ids=output_ids,
        finish_reason=finish_reason,
        matched=_matched(choice, output_ids, end_ids) if finish_reason == "stop" else None,
        spec_accept_length=number(meta.get("spec_accept_length")),
        latency_s=number(meta.get("e2e_latency")),
    )


def _matched(choice: dict[str, Any], output_ids: list[int], ends: frozenset[int]) -> Any:
    """What ended the answer: what the server names, else its last id if that is an end token."""
    # SGLang's name, then vLLM's, which is null for the usual end token.
    for name in ("matched_stop", "stop_reason"):
        if isinstance(choice.get(name), int | str):
            return choice[name]
    return output_ids[-1] if output_ids and output_ids[-1] in ends else None


def _choice(answer: Any) -> dict[str, Any]:
    choices = json_object(answer, "the completion").get("choices")
    if not isinstance(choices, list) or len(choices) != 1:
        raise malformed("it does not hold one choice")
    return json_object(choices[0], "choices")


def _openai_message(message: Message) -> Message:
    """A message as the API takes it: with the arguments of tool calls as JSON text."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    texts = [{**call, "function": _with_text_arguments(call["function"])} for call in calls]
    return {**message, "tool_calls": texts}


def _with_text_arguments(function: dict[str, Any]) -> dict[str, Any]:
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        return function
    return {**function, "arguments": json.dumps(arguments, ensure_ascii=False)}
