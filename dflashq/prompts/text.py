"""The text of a turn: joined from its parts, made encodable, searched for control tokens."""

from __future__ import annotations

import json
import re
from typing import Any

from dflashq.prompts.formats import Rejection

# The chat template writes a prompt's text between control tokens, and the tokenizer turns such a
# token inside the text into the same id. Think tags are not here: a tokenizer may give them one id
# too, but no template acts on them in a user turn, and prompts do talk about them.
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

    Raises Rejection `media_part` or `bad_content_type`; never spells out a number or a null.
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
    """`text` with each lone surrogate as U+FFFD: such a text cannot be written as UTF-8."""
    if text.isascii() or _SURROGATE.search(text) is None:
        return text
    notes.append(why)
    return _SURROGATE.sub("\ufffd", text)


def encodable_tools(tools: list[dict[str, Any]], notes: list[str]) -> list[dict[str, Any]]:
    """The same for every text in the tools; Rejection `bad_tools` for a number that is no JSON.

    Such a number comes from one too large for a float, as in 1e999.
    """
    try:
        text = json.dumps(tools, ensure_ascii=False, allow_nan=False)
    except ValueError:
        raise Rejection("bad_tools", "a number in the tools is too large") from None
    fixed = encodable(text, notes)
    if fixed is text:
        return tools
    out: list[dict[str, Any]] = json.loads(fixed)
    return out


def refuse_control_tokens(text: str, where: str) -> None:
    """Rejection `special_token_in_prompt` when `text` would be encoded with a control token."""
    if "<" not in text and "[" not in text:
        return
    found = CONTROL_TOKEN.search(text)
    if found:
        raise Rejection("special_token_in_prompt", f"{where} holds the control token {found[0]!r}")
