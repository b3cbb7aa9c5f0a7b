"""The text of a turn: its parts joined, lone surrogates replaced, control tokens refused."""

from __future__ import annotations

import json
import re
from typing import Any

from dflashq.prompts.formats import Rejection

# The chat template puts a prompt's text between control tokens; the tokenizer gives such a token
# inside the text the same id, so the text could end its own turn. Think tags are not in this list:
# no template acts on them in a user turn, and prompts do mention them.
CONTROL_TOKEN = re.compile(
    r"<\|[A-Za-z0-9_.:/-]{1,80}\|>"  # ChatML, Llama 3, GLM, gpt-oss
    "|<\uff5c[^\uff5c<>\n]{1,80}\uff5c>"  # DeepSeek, with wide bars
    r"|</?tool_(?:call|response)>|</?s>|\[/?INST\]|<</?SYS>>"
    r"|<(?:start|end)_of_turn>|<(?:bos|eos|pad|unk)>"
)
_SURROGATE = re.compile("[\ud800-\udfff]")
_TEXT_PARTS = {None, "text", "input_text"}


def text_of(content: object, notes: list[str]) -> str:
    """The text of a user or system turn, byte for byte; parts are joined without a separator.

    Rejection `media_part` or `bad_content_type`, also for a number or null in place of text.
    """
    if type(content) is str:
        return content
    if type(content) is not list:
        raise Rejection("bad_content_type", f"content is a {type(content).__name__}")
    return "".join([_part(part, notes) for part in content])


def _part(part: object, notes: list[str]) -> str:
    if isinstance(part, str):
        notes.append("list_of_strings")
        return part
    if not isinstance(part, dict):
        raise Rejection("bad_content_type", f"a part of the content is a {type(part).__name__}")
    kind = part.get("type")
    if not (kind is None or isinstance(kind, str)) or kind not in _TEXT_PARTS:
        raise Rejection("media_part", f"a part of the content has the type {kind!r:.40}")
    key = "text" if "text" in part else "value"
    text = part.get(key)
    if not isinstance(text, str):
        raise Rejection("bad_content_type", "a text part holds no text")
    notes.append("text_parts" if key == "text" else "text_parts_value_key")
    return text


def encodable(text: str, notes: list[str], why: str = "lone_surrogate") -> str:
    """`text` with U+FFFD for each lone surrogate, which UTF-8 cannot encode; notes `why` then."""
    if text.isascii() or _SURROGATE.search(text) is None:
        return text
    notes.append(why)
    return _SURROGATE.sub("\ufffd", text)


def encodable_tools(tools: list[dict[str, Any]], notes: list[str]) -> list[dict[str, Any]]:
    """The tools with U+FFFD for each lone surrogate in any of their texts.

    Rejection `bad_tools` for an infinite number, as JSON's 1e999 becomes when it is parsed.
    """
    try:
        text = json.dumps(tools, ensure_ascii=False, allow_nan=False)
    except ValueError:
        raise Rejection("bad_tools", "a number in the tools is too large") from None
    fixed = encodable(text, notes)
    if fixed is text:
        return tools
    fixed_tools: list[dict[str, Any]] = json.loads(fixed)
    return fixed_tools


def refuse_control_tokens(text: str, where: str) -> None:
    """Rejection `special_token_in_prompt` when `text` contains a control token of some model."""
    if "<" not in text and "[" not in text:
        return
    if token := CONTROL_TOKEN.search(text):
        raise Rejection(
            "special_token_in_prompt", f"{where} contains the control token {token[0]!r}"
        )
