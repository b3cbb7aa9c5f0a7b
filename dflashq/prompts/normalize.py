"""One parsed JSON value becomes a prompt: accepted, normalised with its reasons, or rejected.

Assistant turns of the input are discarded. System and user turns stay, in order and byte for byte.
A conversation ends at the first tool result: the answer to it cannot be generated, since the engine
will not have made the same call.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, NamedTuple

from dflashq.core.model import Message, canonical_json
from dflashq.prompts.formats import Rejection, Turn, turns_of
from dflashq.prompts.text import encodable, encodable_tools, refuse_control_tokens, text_of
from dflashq.prompts.tools import tools_of

ACCEPT, NORMALISE, REJECT = "accept", "normalise", "reject"
SKIP, BLANK_LINE = "skip", "blank_line"


class Outcome(NamedTuple):
    """What became of one input row.

    `do` is accept, normalise or reject. `why` has the reason words: none for accept, one for
    reject, any number for normalise. `row` is the prompt row without its index ({"id", "messages",
    "source"?, "domain"?, "tools"?}), None when rejected.
    """

    do: str
    why: tuple[str, ...]
    detail: str
    row: dict[str, Any] | None


def rejected(why: str, detail: str = "") -> Outcome:
    """The outcome of a row that is rejected for one reason word."""
    return Outcome(REJECT, (why,), detail, None)


def normalise(value: object) -> Outcome:
    """The outcome of one parsed JSON value. Pure; never raises, whatever the value."""
    if type(value) is not dict:
        return rejected("not_an_object", f"the row is a {type(value).__name__}, not a JSON object")
    notes: list[str] = []
    try:
        row = _prompt_row(value, notes)
    except Rejection as exc:
        return rejected(exc.why, encodable(exc.detail, []))
    except RecursionError:
        return rejected("invalid_json", "the row is nested too deep")
    if notes:
        return Outcome(NORMALISE, tuple(dict.fromkeys(notes)), "", row)
    return Outcome(ACCEPT, (), "", row)


def noted(outcome: Outcome, why: str) -> Outcome:
    """The same usable outcome with another reason word; it counts as normalised."""
    return outcome._replace(do=NORMALISE, why=(*outcome.why, why))


def _prompt_row(value: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    messages = _messages(turns_of(value, notes), notes)
    tools = tools_of(value, notes)
    if tools is not None:
        tools = encodable_tools(tools, notes)
        refuse_control_tokens(canonical_json(tools).decode(), "a tool")
    row: dict[str, Any] = {"id": "", "messages": messages}
    for column in ("source", "domain"):
        label = value.get(column)
        if label is not None:
            row[column] = _label(label, notes)
    if tools is not None:
        row["tools"] = tools
    row["id"] = _id(value, row, notes)
    return row


def _messages(turns: list[Turn], notes: list[str]) -> list[Message]:
    """The system and user messages up to the first tool result."""
    messages: list[Message] = []
    users = 0
    for number, turn in enumerate(turns, 1):
        if turn.role == "user":
            users += 1
            messages.append(_user(turn.content, number, notes))
        elif turn.role == "assistant":
            if not users:
                notes.append("leading_assistant")
        elif turn.role == "system":
            _add_system(messages, turn.content, number, notes)
        else:
            notes.append("cut_at_tool_result")
            break
    if not users:
        raise Rejection("no_user_turn", f"none of the {len(turns)} turns is a user's")
    return messages


def _user(content: object, number: int, notes: list[str]) -> Message:
    if content is None:
        raise Rejection("null_user_content", f"the content of turn {number} is null")
    text = text_of(content, notes)
    if not text or text.isspace():
        raise Rejection("empty_prompt", f"turn {number} is blank")
    return {"role": "user", "content": _clean(text, number, notes)}


def _add_system(messages: list[Message], content: object, number: int, notes: list[str]) -> None:
    """Add a system turn; several at the start become one, since many templates take only one."""
    if content is None:
        notes.append("null_system")
        return
    text = _clean(text_of(content, notes), number, notes)
    if not messages:
        messages.append({"role": "system", "content": text})
    elif messages[-1]["role"] == "system":
        notes.append("several_system")
        texts = (messages[-1]["content"], text)
        messages[-1]["content"] = "\n\n".join(filter(None, texts))
    else:
        raise Rejection("system_not_first", f"turn {number} is a system turn after a user turn")


def _clean(text: str, number: int, notes: list[str]) -> str:
    refuse_control_tokens(text, f"turn {number}")
    return encodable(text, notes)


def _label(label: object, notes: list[str]) -> str:
    if type(label) is not str:
        notes.append("label_not_a_string")
        label = _canonical_text(label)
    return encodable(label, notes)


def _id(value: dict[str, Any], row: dict[str, Any], notes: list[str]) -> str:
    """The user's id as a string; without one, a hash of the content."""
    given = value.get("id")
    if type(given) is str and given:
        return encodable(given, notes, "lone_surrogate_in_id")
    if "id" in value:
        notes.append("id_not_a_plain_string")
    if given is None or given == "":
        content = {"messages": row["messages"], "tools": row.get("tools")}
        return "sha256-" + hashlib.sha256(canonical_json(content)).hexdigest()[:16]
    return _canonical_text(given)


def _canonical_text(value: object) -> str:
    """A number, boolean, list or object as canonical JSON, lone surrogates replaced."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return encodable(text, [])
