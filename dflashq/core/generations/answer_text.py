"""One assistant turn from its exact ids: reasoning, content and tool calls."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dflashq.core.generations.segments import OutputSegments
from dflashq.core.token_ids import IdArray

ToolCall = dict[str, Any]
Schemas = dict[str, dict[str, Any]]

_BLOCK = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_FUNCTION = re.compile(r"<function=([^<>\s]+)>(.*)</function>", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^<>\s]+)>(.*?)</parameter>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class AnswerParts:
    """The text of an assistant turn in the parts of an OpenAI message.

    `reasoning_content` is None when thinking was off. `tool_calls` is None without calls, and when
    one of them is malformed. `reasoning_tokens` counts the ids up to `</think>`, that one too.
    """

    reasoning_content: str | None
    content: str
    tool_calls: list[ToolCall] | None
    reasoning_tokens: int


def split_answer(
    output: OutputSegments,
    decode: Callable[[IdArray], str],
    tools: list[dict[str, Any]] | None = None,
) -> AnswerParts:
    """The parts of a turn, cut at the id of the first `</think>`.

    `decode` turns the ids of one part (uint32, shape (number of ids,)) into text. Removed are the
    closing end token and the separators that chat templates write: one newline before `</think>`,
    up to two behind it, and one behind a `<think>` that the model wrote. When thinking was never
    closed, all of the turn is reasoning and the content is empty. `tools` gives the types of XML
    parameters; without it they are text.
    """
    answer = output.ids[output.answer]
    text = decode(answer) if len(answer) else ""
    if output.thinks:
        text = re.sub(r"\A\n{1,2}", "", text)
    content, calls = parse_tool_calls(text, tools)
    if not output.thinks:
        return AnswerParts(None, content, calls, 0)
    return AnswerParts(_reasoning(output, decode), content, calls, output.reasoning_tokens)


def _reasoning(output: OutputSegments, decode: Callable[[IdArray], str]) -> str:
    ids = output.ids[output.thought]
    opened = len(ids) > 0 and ids[0] == output.markers.think_open
    ids = ids[1:] if opened else ids
    text = decode(ids) if len(ids) else ""
    return (text.removeprefix("\n") if opened else text).removesuffix("\n")


def parse_tool_calls(
    text: str, tools: list[dict[str, Any]] | None = None
) -> tuple[str, list[ToolCall] | None]:
    """(content, calls) of an answer. A malformed or unclosed call leaves all text in the content.

    A block is Hermes JSON ({"name", "arguments"}) or XML (<function=…><parameter=…>). Newlines
    around a block are dropped; text on both sides of one is joined by a newline. `arguments` is
    JSON text, as in the OpenAI API; ids are call_0, call_1, ….
    """
    if "<tool_call>" not in text:
        return text, None
    blocks = _BLOCK.findall(text)
    rest = _BLOCK.split(text)[::2]
    if not blocks or any("<tool_call>" in p or "</tool_call>" in p for p in (*rest, *blocks)):
        return text, None
    schemas = _schemas(tools or [])
    calls = []
    for number, block in enumerate(blocks):
        call = _openai_call(number, _call(block.strip(), schemas))
        if call is None:
            return text, None
        calls.append(call)
    pieces = [piece.strip("\n") for piece in rest]
    return "\n".join(piece for piece in pieces if piece.strip()), calls


def _openai_call(number: int, call: tuple[str, dict[str, Any]] | None) -> ToolCall | None:
    if call is None:
        return None
    name, arguments = call
    try:
        spelled = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        # An escape may spell half a surrogate pair, which cannot be stored as UTF-8.
        (name + spelled).encode()
    except (ValueError, RecursionError):
        return None
    function = {"name": name, "arguments": spelled}
    return {"id": f"call_{number}", "type": "function", "function": function}


def _call(block: str, schemas: Schemas) -> tuple[str, dict[str, Any]] | None:
    """(name, arguments) of one block; None when it is malformed."""
    return _hermes(block) if block.startswith("{") else _xml(block, schemas)


def _hermes(block: str) -> tuple[str, dict[str, Any]] | None:
    try:
        call = json.loads(block)
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict) or set(call) != {"name", "arguments"}:
        return None
    name, arguments = call["name"], call["arguments"]
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    return name, arguments


def _xml(block: str, schemas: Schemas) -> tuple[str, dict[str, Any]] | None:
    match = _FUNCTION.fullmatch(block)
    if match is None or _PARAMETER.sub("", match[2]).strip():
        return None
    name, parameters = match[1], _PARAMETER.findall(match[2])
    if len({key for key, _ in parameters}) != len(parameters):
        return None
    types = schemas.get(name, {})
    return name, {key: _typed(_unwrapped(value), types.get(key)) for key, value in parameters}


def _unwrapped(value: str) -> str:
    """A parameter without the newline that the format writes before and behind it."""
    return value.removeprefix("\n").removesuffix("\n")


def _typed(text: str, schema: Any) -> Any:
    """The value in the type of its schema; text without a type, or when the value is no JSON."""
    kind = schema.get("type") if isinstance(schema, dict) else None
    if kind in (None, "string"):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _schemas(tools: list[dict[str, Any]]) -> Schemas:
    """Parameter schemas by function name, of tools in OpenAI form."""
    schemas: Schemas = {}
    for tool in tools:
        function = tool.get("function", tool)
        parameters = function.get("parameters") or {}
        schemas[function.get("name", "")] = parameters.get("properties") or {}
    return schemas
