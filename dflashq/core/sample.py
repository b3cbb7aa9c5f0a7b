"""Rows of the completions and rejected objects: what `datasets` reads and people look at.

Every field has one JSON type in all rows, so that a columnar reader can infer a schema: tools and
tool-call arguments are JSON text, a matched stop is `matched_id` or `matched_text`.
"""

from __future__ import annotations

import json
from typing import Any

from dflashq.core.answer import AnswerParts
from dflashq.core.model import Generation, Message, Prompt, Verdict


def assistant_message(parts: AnswerParts) -> Message:
    """The OpenAI message of one assistant turn, for the history and for the row."""
    message: Message = {"role": "assistant", "content": parts.content}
    if parts.reasoning_content is not None:
        message["reasoning_content"] = parts.reasoning_content
    if parts.tool_calls:
        message["tool_calls"] = parts.tool_calls
    return message


def generation_row(generation: Generation) -> dict[str, Any]:
    """One generation inside a row."""
    row = generation.to_json()
    matched = row.pop("matched")
    row["matched_id"] = matched if isinstance(matched, int) else None
    row["matched_text"] = matched if isinstance(matched, str) else None
    return row


def _message_row(message: Message) -> dict[str, Any]:
    calls = [
        {
            **call,
            "function": {**call["function"], "arguments": _text(call["function"]["arguments"])},
        }
        for call in message.get("tool_calls") or []
    ]
    return {
        "role": message["role"],
        "content": message["content"],
        "reasoning_content": message.get("reasoning_content"),
        "tool_calls": calls or None,
    }


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def sample_row(
    prompt: Prompt,
    messages: list[Message],
    generations: list[Generation],
    reasoning_tokens: int,
    attempt: int,
) -> dict[str, Any]:
    """A prompt with all its generations; `usage` counts tokens over all of them."""
    last = generations[-1] if generations else None
    return {
        "index": prompt.index,
        "id": prompt.id,
        "source": prompt.source,
        "domain": prompt.domain,
        "messages": [_message_row(m) for m in messages],
        "tools": json.dumps(prompt.tools, ensure_ascii=False) if prompt.tools else None,
        "usage": {
            "prompt_tokens": sum(len(g.prompt_ids) for g in generations),
            "completion_tokens": sum(len(g.output_ids) for g in generations),
            "reasoning_tokens": reasoning_tokens,
        },
        "finish_reason": last.finish_reason if last else None,
        "generations": [generation_row(g) for g in generations],
        "engine": last.engine if last else None,
        "attempt": attempt,
    }


def rejected_row(row: dict[str, Any], verdict: Verdict) -> dict[str, Any]:
    """The same row, kept apart with its reason."""
    return {**row, "reason": verdict.reason, "detail": verdict.detail}
