"""Rows of the completions and rejected objects, which `datasets` and people read.

Every field has one JSON type in all rows and is never null, so that a columnar reader infers the
same schema from any object: tools and tool calls are JSON text, an absent text is "", an absent
number 0 (-1 for an id).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from dflashq.core.generations.answer_text import AnswerParts
from dflashq.core.model import Generation, Message, Prompt, Verdict


def assistant_message(parts: AnswerParts) -> Message:
    """One assistant turn as an OpenAI message, for the history of the next turn and for the row."""
    message: Message = {"role": "assistant", "content": parts.content}
    if parts.reasoning_content is not None:
        message["reasoning_content"] = parts.reasoning_content
    if parts.tool_calls:
        message["tool_calls"] = parts.tool_calls
    return message


def conversation(prompt: Prompt, answers: Iterable[AnswerParts]) -> list[Message]:
    """The prompt's messages with each answer behind its user turn; there may be fewer answers."""
    messages, left = [], iter(answers)
    for message in prompt.messages:
        messages.append(message)
        if message["role"] == "user" and (parts := next(left, None)) is not None:
            messages.append(assistant_message(parts))
    return messages


def generation_row(generation: Generation) -> dict[str, Any]:
    """One generation inside a row. The stop is in `matched_id` (-1: none) or `matched_text`.

    The ids stay uint32 arrays where they are: `codec.encode_generated` takes them.
    """
    matched = generation.matched
    return {
        "prompt_ids": generation.prompt_ids,
        "output_ids": generation.output_ids,
        "finish_reason": generation.finish_reason,
        "matched_id": matched if isinstance(matched, int) else -1,
        "matched_text": matched if isinstance(matched, str) else "",
        "spec_accept_length": float(generation.spec_accept_length or 0.0),
        "latency_s": float(generation.latency_s or 0.0),
        "engine": generation.engine,
        "at": generation.at,
    }


def _message_row(message: Message) -> dict[str, Any]:
    return {
        "role": message["role"],
        "content": message["content"],
        "reasoning_content": message.get("reasoning_content") or "",
        "tool_calls": _json(message.get("tool_calls")),
    }


def _json(value: object) -> str:
    """JSON text; "" for nothing."""
    return json.dumps(value, ensure_ascii=False) if value else ""


def sample_row(
    prompt: Prompt,
    messages: list[Message],
    generations: list[Generation],
    reasoning_tokens: int,
    attempt: int,
    retries: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """A prompt with all its generations; `usage` counts tokens over all of them.

    `retries` are the generations that the ladder discarded, each with its turn, reason and detail.
    """
    last = generations[-1] if generations else None
    return {
        "index": prompt.index,
        "id": prompt.id,
        "source": prompt.source or "",
        "domain": prompt.domain or "",
        "messages": [_message_row(m) for m in messages],
        "tools": _json(prompt.tools),
        "usage": {
            "prompt_tokens": sum(len(g.prompt_ids) for g in generations),
            "completion_tokens": sum(len(g.output_ids) for g in generations),
            "reasoning_tokens": reasoning_tokens,
        },
        "finish_reason": last.finish_reason if last else "",
        "generations": [generation_row(g) for g in generations],
        "engine": last.engine if last else "",
        "attempt": attempt,
        "retries": _json(retries),
    }


def rejected_row(row: dict[str, Any], verdict: Verdict) -> dict[str, Any]:
    """The row with the reason word and the sentence of its verdict, for the rejected object."""
    return {**row, "reason": verdict.reason, "detail": verdict.detail}
