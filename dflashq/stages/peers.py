"""The other workers that serve the same queue and are well."""

from __future__ import annotations

from dflashq.ledger import Ledger


def healthy_peers(ledger: Ledger, queue: str, me: str, heard_within_s: float) -> list[str]:
    """Names of workers beside `me` with a ready engine that answers, heard of lately.

    Blocks on Redis; LedgerError.
    """
    return [
        name
        for name, row in sorted(ledger.workers().items())
        if name != me
        and row.get("queue") == queue
        and row.get("engine") == "ready"
        and not row.get("sick")
        and row["silent_s"] <= heard_within_s
    ]
