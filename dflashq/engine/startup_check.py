"""Start-up truth: the engine renders as we do, and what it generates is well-formed."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import requests
from pydantic import SecretStr

from dflashq.core.errors import EngineError, EngineMismatchError, EngineRefusedError
from dflashq.core.model import Generation, Sampling
from dflashq.engine.chat_renderer import ChatRenderer
from dflashq.engine.dialects.openai import chat_body, prompt_ids_of, read_chat
from dflashq.engine.dialects.sglang import generate_body, read_generation, tokenize_body
from dflashq.engine.http_probe import ask
from dflashq.engine.http_session import malformed
from dflashq.engine.profiles import Profile
from dflashq.engine.request import Conversation

log = logging.getLogger(__name__)

CANARY_TOKENS, CANARIES = 24, 3
_CANARY_S = (3.0, 60.0)  # the first real batch may compile kernels
_ABSENT, _REFUSED = (404, 405, 501), 400
_AROUND = 24

_ASK = {"role": "user", "content": "What is 12 + 30?"}
_ANSWER = {"role": "assistant", "reasoning_content": "12 and 30.", "content": "It is 42."}
_AGAIN = {"role": "user", "content": "And 1 + 1?"}
_ODD = {"role": "user", "content": " a\t猫 😀\r\n<think> <|im_end|> e\u0301 \u00a0 \n\n"}
_TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
# SGLang shows the template every tool with this field, which nobody sent. We send ids, so ours
# stays as the template's author meant it.
_SHOWN_TOOL = {**_TOOL, "defer_loading": None}

GOLDEN: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]] | None]] = {
    "one turn": ([_ASK], None),
    "system": ([{"role": "system", "content": "Be brief."}, _ASK], None),
    "history": ([_ASK, _ANSWER, _AGAIN], None),
    "odd text": ([_ODD], None),
    "empty": ([{"role": "user", "content": ""}], None),
    "tools": ([_ASK], [_TOOL]),
}


class StartupCheck:
    """What must hold of an engine before the first prompt; `check` may be called from any thread.

    The rendering of golden conversations is compared id by id with the server's own; then a few
    short generations must come out well-formed. Blocks, up to minutes on a cold engine.
    """

    def __init__(self, profile: Profile, renderer: ChatRenderer, api_key: SecretStr | None) -> None:
        self._profile, self._renderer, self._api_key = profile, renderer, api_key
        self._chat = profile.launch.dialect == "openai"

    def check(self, base_url: str, server_info: dict[str, Any]) -> None:
        """EngineMismatchError with the first difference; a server that renders nothing is logged.

        EngineError when it stopped answering meanwhile.
        """
        model = str(server_info.get("served_model_name") or self._profile.model.id)
        try:
            compared = self._compare(base_url, model)
            self._canary(base_url, model)
        except requests.RequestException as exc:
            raise EngineError(f"the engine at {base_url} did not answer: {exc}") from exc
        log.info("engine checked: %d golden renderings agree, a canary was generated", compared)

    # --- rendering

    def _compare(self, base_url: str, model: str) -> int:
        compared = 0
        for name, talk, ours in self._golden():
            try:
                theirs = self._rendered(base_url, model, talk)
            except requests.HTTPError as exc:
                if exc.response.status_code in _ABSENT:
                    log.warning("the engine does not tell how it renders: nothing was compared")
                    return 0
                if exc.response.status_code != _REFUSED:
                    raise
                log.warning("the engine refuses golden conversation %r", name)
                continue
            if theirs not in (ours, self._shown(talk)):
                raise EngineMismatchError(self._difference(name, ours, theirs))
            compared += 1
        return compared

    def _golden(self) -> Iterator[tuple[str, Conversation, list[int]]]:
        """Every golden conversation that our template takes."""
        for thinking in (True, False) if self._profile.model.thinking else (False,):
            for name, (messages, tools) in GOLDEN.items():
                talk = Conversation(messages, tools, thinking)
                try:
                    ours = self._renderer.render(messages, tools, thinking=thinking)
                except EngineRefusedError as exc:
                    log.debug("golden prompt %r does not fit this template: %s", name, exc)
                    continue
                yield name, talk, ours

    def _shown(self, talk: Conversation) -> list[int]:
        """Our rendering with tools as SGLang shows them; nothing without tools."""
        if not talk.tools:
            return []
        return self._renderer.render(talk.messages, [_SHOWN_TOOL], thinking=talk.thinking)

    def _rendered(self, base_url: str, model: str, talk: Conversation) -> list[int]:
        """The server's ids for a conversation."""
        if self._chat:
            one = Sampling(temperature=0.0, max_new_tokens=1)
            body = chat_body(model, talk, one, _rid(), ())
            told = prompt_ids_of(self._ask(f"{base_url}/v1/chat/completions", body))
            if told is None:
                raise malformed("it carries no prompt_token_ids")
            return told
        ids: list[int] = self._ask(f"{base_url}/v1/tokenize", tokenize_body(talk))["tokens"]
        return ids

    def _difference(self, name: str, ours: list[int], theirs: list[int]) -> str:
        place = next(i for i, (a, b) in enumerate(zip_longest(ours, theirs)) if a != b)
        return (
            f"the engine renders prompts differently from the tokenizer and chat template in "
            f"{self._renderer.model_dir}; no prompt was sent to it. Golden conversation {name!r} "
            f"differs at position {place}:\n"
            f"  ours:         {self._around(ours, place)}\n"
            f"  the engine's: {self._around(theirs, place)}\n"
            "Give both the same files: DFLASHQ_MODEL_PATH here, the model's path, revision and "
            "chat template there."
        )

    def _around(self, ids: list[int], place: int) -> str:
        here = f"id {ids[place]}" if place < len(ids) else "the end"
        before = self._renderer.decode(ids[max(0, place - _AROUND) : place])
        after = self._renderer.decode(ids[place : place + _AROUND])
        return f"{here} after {before!r}, going on {after!r}"

    # --- generation

    def _canary(self, base_url: str, model: str) -> None:
        """One of a few short generations must be in order: weights that are garbage fail all."""
        wrong = ""
        for name, talk, ours in list(self._golden())[:CANARIES]:
            try:
                wrong = self._oddity(self._generated(base_url, model, talk, ours))
            except requests.HTTPError as exc:
                wrong = f"HTTP {exc.response.status_code}"
            except EngineError as exc:
                wrong = str(exc)
            if not wrong:
                return
            log.warning("the engine's answer to golden prompt %r is odd: %s", name, wrong)
        raise EngineMismatchError(
            f"the engine generates nothing that is in order, so no prompt was sent to it; the last "
            f"of {CANARIES} short tries: {wrong}. Look at its log; check that weights, precision "
            "and kernels fit this GPU."
        )

    def _generated(
        self, base_url: str, model: str, talk: Conversation, ours: list[int]
    ) -> Generation:
        sampling = Sampling(temperature=0.0, max_new_tokens=CANARY_TOKENS)
        ends = self._renderer.markers().end_ids
        if self._chat:
            body = chat_body(model, talk, sampling, _rid(), ends)
            answer = self._ask(f"{base_url}/v1/chat/completions", body)
            return read_chat(answer, prompt_ids_of(answer) or ours, ends)
        body = generate_body(ours, sampling, _rid(), ends)
        return read_generation(self._ask(f"{base_url}/generate", body), ours)

    def _oddity(self, made: Generation) -> str:
        size = self._renderer.markers().vocab_size
        if isinstance(made.matched, str):
            return f"it stopped at {made.matched!r}, which nobody asked for"
        if not made.output_ids:
            return "no token came out"
        if stray := [token for token in made.output_ids if not 0 <= token < size]:
            return f"id {stray[0]} is outside the vocabulary of {size}"
        if len(made.output_ids) == CANARY_TOKENS and len(set(made.output_ids)) == 1:
            return f"the token {made.output_ids[0]} again and again"
        return ""

    def _ask(self, url: str, body: dict[str, Any]) -> Any:
        return ask(url, body, self._api_key, _CANARY_S)


def _rid() -> str:
    return f"canary-{secrets.token_hex(12)}"
