"""Prompts as the model sees them: the chat template and tokenizer of a model folder, offline."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from dflashq.core.errors import ConfigError, DflashqError, EngineRefusedError, is_panic
from dflashq.core.generations.special_tokens import SpecialTokens, blank_ids
from dflashq.core.model import Message, canonical_json
from dflashq.core.token_ids import Ids, id_array
from dflashq.engine.detokenize import Detokenizer

_VOCABULARY_FILES = ("tokenizer.json",)
_OLD_VOCABULARY_FILES = ("vocab.json", "merges.txt", "tokenizer.model", "added_tokens.json")


class ChatRenderer:
    """Renders and decodes for one model folder; the first use loads the tokenizer (seconds).

    Thread-safe: one lock covers every use of the tokenizer. Every method raises ConfigError when
    the folder lacks a tokenizer or a chat template.
    """

    def __init__(self, model_dir: str | Path) -> None:
        self.model_dir = Path(model_dir)
        self._lock = threading.RLock()

    def render(
        self, messages: list[Message], tools: list[dict[str, Any]] | None, *, thinking: bool
    ) -> list[int]:
        """The token ids of a conversation, ending with the opening of the assistant's next turn.

        EngineRefusedError, with the template's own message, when the template rejects it, and
        when there are `tools` that the template would not render.
        """
        if tools and not self._renders_tools:
            raise EngineRefusedError(
                "this model's chat template does not render tools: without them the prompt would "
                "be another one"
            )
        with self._lock, _as_refusal("the chat template does not take this conversation"):
            text = self._tokenizer.apply_chat_template(
                [_plain(message) for message in messages],
                tools=tools or None,
                add_generation_prompt=True,
                enable_thinking=thinking,
                tokenize=False,
            )
        with self._lock, _as_refusal("the tokenizer does not take this conversation"):
            ids: list[int] = self._core.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Ids) -> str:
        """The text of `ids`, special tokens included; bytes that are no UTF-8 become U+FFFD."""
        with self._lock:
            return self._detokenizer(id_array(ids))

    def load(self) -> None:
        """Load the tokenizer, and everything derived from it, now. Blocks for seconds."""
        self.markers()
        self.decode([])

    def markers(self) -> SpecialTokens:
        """The special token ids of this model. The first call reads three files."""
        return self._markers

    @cached_property
    def tokenizer_sha256(self) -> str:
        """The sha256 (hex) of the folder's vocabulary files; does not load the tokenizer."""
        present = [f for f in _VOCABULARY_FILES if (self.model_dir / f).is_file()]
        present = present or [f for f in _OLD_VOCABULARY_FILES if (self.model_dir / f).is_file()]
        if not present:
            raise ConfigError(f"{self.model_dir} holds no tokenizer: set DFLASHQ_MODEL_PATH.")
        digest = hashlib.sha256()
        for name in present:
            body = (self.model_dir / name).read_bytes()
            digest.update(f"{name}:{len(body)}:".encode() + body)
        return digest.hexdigest()

    @cached_property
    def template_sha256(self) -> str:
        """The sha256 (hex) of the chat template, whichever file of the folder holds it."""
        template = self._tokenizer.chat_template
        body = template.encode() if isinstance(template, str) else canonical_json(template)
        return hashlib.sha256(body).hexdigest()

    @cached_property
    def _renders_tools(self) -> bool:
        template = self._tokenizer.chat_template
        return "tools" in (template if isinstance(template, str) else "".join(template.values()))

    @cached_property
    def _detokenizer(self) -> Detokenizer:
        return Detokenizer(self._core)

    @cached_property
    def _core(self) -> Any:
        """The Rust tokenizer inside. The Python layer around it takes three times as long.

        That layer only adds special tokens and cleans up spaces, and we want neither.
        """
        core = self._tokenizer.backend_tokenizer
        core.no_truncation()
        core.no_padding()
        return core

    @cached_property
    def _tokenizer(self) -> Any:
        if not self.model_dir.is_dir():
            raise ConfigError(f"there is no model folder {self.model_dir}: set DFLASHQ_MODEL_PATH.")
        # Here, since it takes seconds to import and enqueue and status do not need it.
        from transformers import AutoTokenizer  # noqa: PLC0415

        with self._lock:
            try:
                tokenizer = AutoTokenizer.from_pretrained(
                    str(self.model_dir), local_files_only=True
                )
            except (OSError, ValueError) as exc:
                raise ConfigError(f"{self.model_dir} holds no usable tokenizer: {exc}") from exc
        if tokenizer.chat_template is None:
            raise ConfigError(f"{self.model_dir} has no chat template: prompts cannot be rendered.")
        return tokenizer

    @cached_property
    def _markers(self) -> SpecialTokens:
        ends = self._end_ids()
        think_open, think_close = self._token("<think>"), self._token("</think>")
        return SpecialTokens(
            end_ids=ends,
            think_open=think_open,
            think_close=think_close,
            template_ids=self._template_ids() - ends - {think_open, think_close},
            vocab_size=self._vocab_size(),
            blank_ids=blank_ids(self._tokenizer.get_vocab()),
        )

    def _token(self, text: str) -> int | None:
        """The id of `text` if it is a single token of the vocabulary, else None."""
        token = self._tokenizer.convert_tokens_to_ids(text)
        known = token is not None and self._tokenizer.convert_ids_to_tokens(token) == text
        return int(token) if known else None

    def _end_ids(self) -> frozenset[int]:
        named = self._json("generation_config.json").get("eos_token_id")
        ends = set(named if isinstance(named, list) else [named])
        ends.add(self._tokenizer.eos_token_id)
        ends.discard(None)
        if not ends:
            raise ConfigError(f"{self.model_dir} names no end token: no answer could ever end.")
        return frozenset(ends)

    def _template_ids(self) -> frozenset[int]:
        """Special tokens that the template writes itself: an answer that holds one is broken."""
        added = self._tokenizer.added_tokens_decoder
        special = {i: str(token) for i, token in added.items() if token.special}
        source = self._tokenizer.chat_template
        text = source if isinstance(source, str) else "".join(source.values())
        found = {i for i, token in special.items() if token in text}
        if "bos_token" in text and self._tokenizer.bos_token_id is not None:
            found.add(self._tokenizer.bos_token_id)
        return frozenset(found)

    def _vocab_size(self) -> int:
        """The rows of the model's output layer: more than the tokens, because they are padded."""
        model = self._json("config.json")
        size = model.get("vocab_size") or model.get("text_config", {}).get("vocab_size")
        return int(size or len(self._tokenizer))

    def _json(self, name: str) -> dict[str, Any]:
        path = self.model_dir / name
        row: dict[str, Any] = json.loads(path.read_bytes()) if path.is_file() else {}
        return row


@contextmanager
def _as_refusal(what: str) -> Iterator[None]:
    """Turn what template or tokenizer raise into EngineRefusedError: the prompt is at fault.

    Errors of the machine pass. A panic in the tokenizer's Rust code is no Exception.
    """
    try:
        yield
    except (DflashqError, OSError, MemoryError):
        raise
    except Exception as exc:
        raise EngineRefusedError(f"{what}: {exc or type(exc).__name__}") from exc
    except BaseException as exc:
        if not is_panic(exc):
            raise
        raise EngineRefusedError(f"{what}: {exc}") from exc


def _plain(message: Message) -> Message:
    """A message as templates expect it: content as text, tool-call arguments as objects.

    Servers convert the conversations that they receive in the same way.
    """
    plain = dict(message)
    if plain.get("content") is None:
        plain["content"] = ""
    if plain.get("tool_calls"):
        plain["tool_calls"] = [_plain_call(call) for call in plain["tool_calls"]]
    return plain


def _plain_call(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    return {**call, "function": {**function, "arguments": json.loads(function["arguments"])}}
