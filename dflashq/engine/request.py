"""The turn that is asked for, as a conversation: what a dialect without ids needs."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from dflashq.core.model import Message

# Sees the ids so far while they come; raises to end the generation.
TokenObserver = Callable[[list[int]], None]


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages up to the last user turn, and how the template is to render them."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None
    thinking: bool


def request_ids() -> Iterator[str]:
    """Ids for requests, without end: all of one length, and no other series has them.

    Random once and counted from then on: asking the system for random bytes gives up the
    interpreter each time, which costs a busy loop more than a request does.
    """
    series = secrets.token_hex(8)
    return (f"dfq-{series}{number:016x}" for number in itertools.count())
