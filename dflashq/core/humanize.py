"""Numbers in sentences."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """`1 batch`, `12 batches`, `1,200 prompts`: a count with its regular English noun."""
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {noun}{'es' if noun.endswith('ch') else 's'}"


def dollars(amount: float) -> str:
    """`$1,200`, and `$0.35` where whole dollars would say nothing."""
    return f"${amount:,.0f}" if amount >= 100 or not amount else f"${amount:,.2f}"
