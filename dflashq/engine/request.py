"""What one request carries beside the token ids: the conversation, an id, an observer."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from dflashq.core.model import Message

# Called with all ids generated so far; an exception ends the generation.
TokenObserver = Callable[[list[int]], None]


@dataclass(frozen=True, slots=True)
class Conversation:
    """The messages up to the last user turn, and how the chat template renders them.

    `tools`: JSON schemas of the tools, or None. `thinking`: the template's `enable_thinking`.
    """

    messages: list[Message]
    tools: list[dict[str, Any]] | None
    thinking: bool


def request_ids() -> Iterator[str]:
    """An endless series of request ids of equal length; no two series share an id.

    The series has a random name and a counter. Random bytes for every id would cost more than a
    request does: reading them from the system releases the interpreter lock each time.
    """
    series = secrets.token_hex(8)
    return (f"dfq-{series}{number:016x}" for number in itertools.count())


def startup_request_id() -> str:
    """A request id for the start-up check; all are of equal length."""
    return f"startup-{secrets.token_hex(12)}"
