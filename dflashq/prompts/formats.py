"""The formats of an input row, each read into the same turns: (role, content as in the row).

Roles are `user`, `assistant`, `system`, `tool`. Contents are not checked here, because those of
assistant and tool turns are discarded anyway.
"""

from __future__ import annotations

from typing import Any, NamedTuple

ROLES = {
    "human": "user",
    "user": "user",
    "prompter": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "system": "system",
    "developer": "system",
    "tool": "tool",
    "tool_call": "assistant",
    "tool_calls": "assistant",
    "tool_caller": "assistant",
    "function_call": "assistant",
    "function_caller": "assistant",
    "funccaller": "assistant",
    "observation": "tool",
    "tool_response": "tool",
    "tool_result": "tool",
    "function": "tool",
    "function_response": "tool",
    "function_result": "tool",
    "funcresponse": "tool",
    "ipython": "tool",
}
# The roles that belong to each format; any other spelling is an alias and gets a note.
SHAREGPT_ROLES = {"human": "user", "gpt": "assistant", "system": "system"}
OPENAI_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "tool": "tool"}
_ALIAS_NOTES = {"developer": "developer_role"} | dict.fromkeys(
    ("user", "assistant", "human", "gpt", "prompter", "model", "bot", "chatgpt", "bing", "bard"),
    "role_alias",
)
_OTHER_KEYS = {"role": "role_content_keys", "from": "from_value_keys"}

MEDIA_COLUMNS = ("images", "image", "videos", "video", "audios", "audio")
SYSTEM_COLUMNS = ("system", "system_prompt")


class Rejection(Exception):
    """A row cannot be used, for one reason word; `detail` says what is wrong with it."""

    def __init__(self, why: str, detail: str = "") -> None:
        self.why, self.detail = why, detail
        super().__init__(f"{why}: {detail}")


class Turn(NamedTuple):
    """One turn of the input: its role, one of four, and its content as in the row."""

    role: str
    content: Any


def turns_of(row: dict[str, Any], notes: list[str]) -> list[Turn]:
    """The turns of a row in any known format, in order; each deviation adds a word to `notes`.

    Rejection when the row has no known format, a malformed list of turns, or media columns.
    """
    for column in MEDIA_COLUMNS:
        if row.get(column):
            raise Rejection("media_part", f"column {column!r} is not empty")
    turns = _turns_by_format(row, notes)
    for column in SYSTEM_COLUMNS:
        if row.get(column):
            notes.append("system_column")
            turns.insert(0, Turn("system", row[column]))
    return turns


def _turns_by_format(row: dict[str, Any], notes: list[str]) -> list[Turn]:
    if row.get("conversations") is not None:
        return _listed(row["conversations"], SHAREGPT_ROLES, "from", "value", notes)
    if row.get("messages") is not None:
        return _listed(row["messages"], OPENAI_ROLES, "role", "content", notes)
    if "conversations" in row or "messages" in row:
        raise Rejection("empty_conversation", "the list of turns is null")
    if "instruction" in row:
        return _alpaca(row, notes)
    if "prompt" in row:
        return _prompt(row["prompt"], notes)
    keys = ", ".join(sorted(map(str, row))[:12])
    raise Rejection("unknown_schema", f"no prompt in the columns: {keys}")


def _listed(
    turns: object, own: dict[str, str], role_key: str, text_key: str, notes: list[str]
) -> list[Turn]:
    """Turns from a list of objects; `own` are the roles of this format, with its two keys."""
    if type(turns) is not list:
        raise Rejection("bad_conversation_type", f"turns are {_type(turns)}, not a list")
    if not turns:
        raise Rejection("empty_conversation", "the list of turns is empty")
    listed = []
    for number, turn in enumerate(turns, 1):
        if type(turn) is not dict:
            why = "null_turn" if turn is None else "bad_turn_type"
            raise Rejection(why, f"turn {number} is {_type(turn)}, not an object")
        name = turn.get(role_key)
        role = own.get(name) if type(name) is str else None
        if role is None:
            role = _role(turn, number, role_key, notes)
        content = turn[text_key] if text_key in turn else _other_content(turn, notes)
        listed.append(Turn(role, content))
    return listed


def _role(turn: dict[str, Any], number: int, role_key: str, notes: list[str]) -> str:
    """The role of a turn that does not spell it as its format does."""
    key = role_key
    if key not in turn:
        key = "role" if role_key == "from" else "from"
        if key not in turn:
            raise Rejection("missing_role", f"turn {number} has no role")
        notes.append(_OTHER_KEYS[key])
    name = turn[key]
    spelled = name.strip().lower().replace("-", "_") if isinstance(name, str) else ""
    role = ROLES.get(spelled)
    if role is None:
        raise Rejection("unknown_role", f"turn {number} has the role {name!r:.60}")
    if name != spelled:
        notes.append("role_case")
    if spelled not in (SHAREGPT_ROLES if key == "from" else OPENAI_ROLES):
        notes.append(_ALIAS_NOTES.get(spelled, "tool_turns"))
    return role


def _other_content(turn: dict[str, Any], notes: list[str]) -> object:
    """The content under the key of the other format; None when the turn has neither key."""
    for text_key, role_key in (("content", "role"), ("value", "from")):
        if text_key in turn:
            notes.append(_OTHER_KEYS[role_key])
            return turn[text_key]
    return None


def _prompt(prompt: object, notes: list[str]) -> list[Turn]:
    if type(prompt) is list:
        notes.append("prompt_messages")
        return _listed(prompt, OPENAI_ROLES, "role", "content", notes)
    return [Turn("user", prompt)]


def _alpaca(row: dict[str, Any], notes: list[str]) -> list[Turn]:
    """The pairs of `history`, then instruction and input, joined by a blank line."""
    turns = _history(row.get("history"), notes)
    parts = [row["instruction"], row.get("input")]
    for part in parts:
        if part is not None and type(part) is not str:
            raise Rejection("bad_content_type", f"instruction or input is {_type(part)}")
    texts = [part for part in parts if part]
    if not texts and None in parts[:1]:
        raise Rejection("null_user_content", "instruction is null and there is no input")
    turns.append(Turn("user", "\n\n".join(texts)))
    return turns


def _history(history: object, notes: list[str]) -> list[Turn]:
    if not history:
        return []
    if type(history) is not list:
        raise Rejection("bad_conversation_type", f"history is {_type(history)}, not a list")
    turns = []
    for pair in history:
        if type(pair) is not list or len(pair) != 2:
            raise Rejection("bad_turn_type", "history holds something other than a pair")
        turns += [Turn("user", pair[0]), Turn("assistant", pair[1])]
    notes.append("alpaca_history")
    return turns


def _type(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}
    if value is None:
        return "null"
    return names.get(type(value), "a number")
