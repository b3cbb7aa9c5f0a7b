"""The turn that is asked for, as a conversation: what a dialect without ids needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dflashq.core.model import Message

# Sees the ids so far while they come; raises to end the generation.
Watch = Callable[[list[int]], None]


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages up to the last user turn, and how the template is to render them."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None
    thinking: bool
