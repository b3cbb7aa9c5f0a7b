"""What a worker counts and notes down of its prompts: metrics, and rejections one by one."""

from __future__ import annotations

import logging

from dflashq.core import metrics
from dflashq.core.model import Generation
from dflashq.ledger import Lease
from dflashq.stages.generate.settled_prompt import SettledPrompt

# A channel of its own: a worker writes it to a file that a person can search, not to its log.
REJECTIONS = "dflashq.rejections"
_rejections = logging.getLogger(REJECTIONS)

# Verdicts given without a generation: nothing of theirs shows that they are new.
_REFUSALS = frozenset(
    {"refused_input", "too_long", "engine_crash", "engine_error", "internal_error"}
)


def count_generation(run: str, generation: Generation) -> None:
    """One assistant turn came from the engine."""
    metrics.GENERATIONS.add(run=run)
    metrics.GENERATED_TOKENS.add(len(generation.output_ids), run=run)
    metrics.PROMPT_TOKENS.add(len(generation.prompt_ids), run=run)


def is_new(settled: SettledPrompt, kept_turns: int) -> bool:
    """Whether this attempt judged the prompt first; the caller saw no verdict kept of it."""
    return settled.counts["generations"] > kept_turns or settled.reason in _REFUSALS


def count_settled(lease: Lease, settled: SettledPrompt) -> None:
    """A prompt got its verdict on this worker."""
    if settled.reason is None:
        metrics.ACCEPTED.add(run=lease.run)
    else:
        note_rejected(lease, settled)


def note_rejected(lease: Lease, settled: SettledPrompt) -> None:
    """Count a rejected prompt and write down why. Does not block."""
    metrics.REJECTED.add(run=lease.run, reason=str(settled.reason))
    _rejections.info(
        "rejected: run=%s batch=%s index=%d reason=%s detail=%s",
        *(lease.run, lease.batch, settled.index, settled.reason),
        settled.verdict.detail,
    )
