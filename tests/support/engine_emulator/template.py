"""The emulated engine's own rendering: jinja2 and tokenizers, without transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import jinja2.sandbox
from tokenizers import Tokenizer


class Template:
    """Chat template and vocabulary of one model folder; `extra` is added to every prompt."""

    def __init__(self, folder: Path, extra: str = "") -> None:
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._config = json.loads((folder / "tokenizer_config.json").read_text())
        own = folder / "chat_template.jinja"
        source = own.read_text() if own.is_file() else self._config["chat_template"]
        # The settings that chat templates are written for.
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _refuse
        self._template, self._extra = environment.from_string(source), extra

    def tokens(self, body: dict[str, Any], *, defer_loading: bool = True) -> list[int]:
        """The ids of a prompt, or of messages; tools as SGLang shows them, or as they came."""
        shown = {"defer_loading": None} if defer_loading else {}
        if body.get("messages") is not None:
            tools = [{**tool, **shown} for tool in body.get("tools") or []]
            text = self._rendered(body["messages"], tools, body.get("chat_template_kwargs") or {})
        else:
            text = body["prompt"]
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _rendered(self, messages: Any, tools: list[Any], given: dict[str, Any]) -> str:
        ends = {f"{end}_token": _text(self._config.get(f"{end}_token")) for end in ("bos", "eos")}
        text = self._template.render(
            messages=[_with_objects(message) for message in messages],
            tools=tools or None,
            add_generation_prompt=True,
            **ends,
            **given,
        )
        return text + self._extra


def _with_objects(message: dict[str, Any]) -> dict[str, Any]:
    """A message whose tool calls have their arguments as objects, as servers parse them."""
    plain = {**message, "content": message.get("content") or ""}
    for call in plain.get("tool_calls") or []:
        if isinstance(call["function"].get("arguments"), str):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return plain


def _text(token: Any) -> str:
    return token["content"] if isinstance(token, dict) else token or ""


def _tojson(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
