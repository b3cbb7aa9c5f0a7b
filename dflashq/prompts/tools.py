"""The tool definitions of a row in OpenAI form: [{"type": "function", "function": {…}}]."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from dflashq.prompts.formats import Rejection

MAX_DEPTH = 64


def tools_of(row: dict[str, Any], notes: list[str]) -> list[dict[str, Any]] | None:
    """The tools of a row, or None without any; Rejection `bad_tools` when they are malformed.

    A list in OpenAI form is accepted as it is. These are normalised and add a word to `notes`: a
    JSON string, bare functions, one definition without its list, the older column `functions`.
    """
    tools = row.get("tools")
    if tools is None and row.get("functions") is not None:
        notes.append("functions_column")
        tools = row["functions"]
    if isinstance(tools, str):
        notes.append("tools_from_string")
        tools = _parse(tools) if tools.strip() else None
    if isinstance(tools, dict):
        notes.append("single_tool")
        tools = [tools]
    if tools is None or tools == []:
        return None
    if not isinstance(tools, list):
        raise Rejection("bad_tools", "tools are neither a list nor its JSON text")
    definitions = [_definition(tool, number, notes) for number, tool in enumerate(tools, 1)]
    if _too_deep(definitions, MAX_DEPTH):
        raise Rejection("bad_tools", f"tools are nested deeper than {MAX_DEPTH} levels")
    return definitions


def _parse(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as exc:
        raise Rejection("bad_tools", f"tools are no JSON: {exc}") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _definition(tool: object, number: int, notes: list[str]) -> dict[str, Any]:
    if not isinstance(tool, dict):
        raise Rejection("bad_tools", f"tool {number} is not an object")
    if "function" in tool:
        function, wrapped = tool["function"], tool
        if tool.get("type") != "function":
            notes.append("bare_functions")
            wrapped = {"type": "function", **{k: v for k, v in tool.items() if k != "type"}}
    else:
        notes.append("bare_functions")
        bare = {k: v for k, v in tool.items() if (k, v) != ("type", "function")}
        function, wrapped = bare, {"type": "function", "function": bare}
    _check(function, number)
    return wrapped


def _check(function: object, number: int) -> None:
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(function, dict) or not isinstance(name, str) or not name.strip():
        raise Rejection("bad_tools", f"tool {number} has no function name")
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise Rejection(
            "bad_tools", f"the parameters of tool {number} ({name:.60}) are not an object"
        )


def _too_deep(value: object, left: int) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list):
        return False
    return left == 0 or any(_too_deep(inner, left - 1) for inner in value)
