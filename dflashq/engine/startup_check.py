"""The check of a started engine: it renders as we do, and what it generates is well-formed."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import requests
from pydantic import SecretStr

from dflashq.core.errors import EngineError, EngineMismatchError, EngineRefusedError
from dflashq.core.model import Generation, Sampling
from dflashq.engine.chat_renderer import ChatRenderer
from dflashq.engine.dialects import DIALECTS
from dflashq.engine.profiles import Profile
from dflashq.engine.request import Conversation

log = logging.getLogger(__name__)

PROBES, PROBE_TOKENS = 3, 24
_PROBE_SAMPLING = Sampling(temperature=0.0, max_new_tokens=PROBE_TOKENS)
_NO_SUCH_ROUTE, _REFUSED = (404, 405, 501), 400
_CONTEXT_IDS = 24  # ids before and after a difference that the error shows as text

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
# SGLang adds this field to every tool before it renders. We send ids and render tools as they
# came, so both renderings are right.
_TOOL_OF_SGLANG = {**_TOOL, "defer_loading": None}

GOLDEN: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]] | None]] = {
    "one turn": ([_ASK], None),
    "system": ([{"role": "system", "content": "Be brief."}, _ASK], None),
    "history": ([_ASK, _ANSWER, _AGAIN], None),
    "odd text": ([_ODD], None),
    "empty": ([{"role": "user", "content": ""}], None),
    "tools": ([_ASK], [_TOOL]),
}


class StartupCheck:
    """What must hold of an engine before it gets the first prompt. Thread-safe.

    First, the server must render a few golden conversations to exactly our token ids. Then one of
    three short greedy generations must be well-formed.
    """

    def __init__(self, profile: Profile, renderer: ChatRenderer, api_key: SecretStr | None) -> None:
        self._profile, self._renderer, self._api_key = profile, renderer, api_key
        self._dialect = DIALECTS[profile.launch.dialect]

    def check(self, base_url: str, server_info: dict[str, Any]) -> int:
        """Check one server; returns how many renderings were compared.

        That is 0 only for a server without a route that renders, which is logged. `server_info`
        names the model (`served_model_name`). Blocks, up to minutes on an engine that still
        compiles its kernels; safe to repeat. EngineMismatchError with the first difference;
        EngineError when the server stops answering.
        """
        model = str(server_info.get("served_model_name") or self._profile.model.id)
        try:
            compared = self._compare_renderings(base_url, model)
            self._probe_generation(base_url, model)
        except requests.RequestException as exc:
            raise EngineError(f"the engine at {base_url} did not answer: {exc}") from exc
        log.info("engine checked: %d golden renderings agree, a probe was generated", compared)
        return compared

    # --- rendering

    def _compare_renderings(self, base_url: str, model: str) -> int:
        compared = refused = 0
        for name, conversation, ours in self._golden_conversations():
            try:
                theirs = self._dialect.render(base_url, model, conversation, self._api_key)
            except requests.HTTPError as exc:
                if exc.response.status_code in _NO_SUCH_ROUTE:
                    log.warning("the engine does not tell how it renders: nothing was compared")
                    return 0
                if exc.response.status_code != _REFUSED:
                    raise
                log.warning("the engine refuses golden conversation %r", name)
                refused += 1
                continue
            if theirs not in self._accepted_renderings(conversation, ours):
                raise EngineMismatchError(self._difference(name, ours, theirs))
            compared += 1
        if refused and not compared:
            raise EngineMismatchError(
                f"the engine refuses to render any of {refused} golden conversations, though "
                f"the chat template in {self._renderer.model_dir} takes them; no prompt was sent "
                "to it. Give both the same chat template."
            )
        return compared

    def _golden_conversations(self) -> Iterator[tuple[str, Conversation, list[int]]]:
        """Name, conversation and our ids of every golden conversation that our template takes."""
        for thinking in (True, False) if self._profile.model.thinking else (False,):
            for name, (messages, tools) in GOLDEN.items():
                try:
                    ours = self._renderer.render(messages, tools, thinking=thinking)
                except EngineRefusedError as exc:
                    log.debug("golden prompt %r does not fit this template: %s", name, exc)
                    continue
                yield name, Conversation(messages, tools, thinking), ours

    def _accepted_renderings(
        self, conversation: Conversation, ours: list[int]
    ) -> tuple[list[int], ...]:
        """Our ids; with tools also our ids for the tools as SGLang changes them."""
        if not conversation.tools:
            return (ours,)
        messages, thinking = conversation.messages, conversation.thinking
        return ours, self._renderer.render(messages, [_TOOL_OF_SGLANG], thinking=thinking)

    def _difference(self, name: str, ours: list[int], theirs: list[int]) -> str:
        place = next(i for i, (a, b) in enumerate(zip_longest(ours, theirs)) if a != b)
        return (
            f"the engine renders prompts differently from the tokenizer and chat template in "
            f"{self._renderer.model_dir}; no prompt was sent to it. Golden conversation {name!r} "
            f"differs at position {place}:\n"
            f"  ours:         {self._context_of(ours, place)}\n"
            f"  the engine's: {self._context_of(theirs, place)}\n"
            "Give both the same files: DFLASHQ_MODEL_PATH here, the model's path, revision and "
            "chat template there."
        )

    def _context_of(self, ids: list[int], place: int) -> str:
        here = f"id {ids[place]}" if place < len(ids) else "the end"
        before = self._renderer.decode(ids[max(0, place - _CONTEXT_IDS) : place])
        after = self._renderer.decode(ids[place : place + _CONTEXT_IDS])
        return f"{here} after {before!r}, going on {after!r}"

    # --- generation

    def _probe_generation(self, base_url: str, model: str) -> None:
        """One of the probes must be well-formed: an engine with garbage weights fails all."""
        reason = ""
        for name, conversation, ids in list(self._golden_conversations())[:PROBES]:
            try:
                generation = self._dialect.generate_once(
                    base_url,
                    model,
                    conversation,
                    ids,
                    _PROBE_SAMPLING,
                    self._renderer.markers().end_ids,
                    self._api_key,
                )
                reason = self._malformed_reason(generation)
            except requests.HTTPError as exc:
                reason = f"HTTP {exc.response.status_code}"
            except EngineError as exc:
                reason = str(exc)
            if not reason:
                return
            log.warning("the engine's answer to golden prompt %r is odd: %s", name, reason)
        raise EngineMismatchError(
            f"the engine generates nothing that is in order, so no prompt was sent to it; the last "
            f"of {PROBES} short tries: {reason}. Look at its log; check that weights, precision "
            "and kernels fit this GPU."
        )

    def _malformed_reason(self, generation: Generation) -> str:
        """Why a probe's generation is not one of a working model; empty when it may be."""
        size = self._renderer.markers().vocab_size
        output_ids = generation.output_ids
        if isinstance(generation.matched, str):
            return f"it stopped at {generation.matched!r}, which nobody asked for"
        if not output_ids:
            return "no token came out"
        if outside := [token for token in output_ids if not 0 <= token < size]:
            return f"id {outside[0]} is outside the vocabulary of {size}"
        if len(output_ids) == PROBE_TOKENS and len(set(output_ids)) == 1:
            return f"the token {output_ids[0]} again and again"
        return ""
