"""The other workers that serve the same queue and are well."""

from __future__ import annotations

from dflashq.ledger import Ledger


def healthy_peers(
    ledger: Ledger, queue: str, me: str, heard_within_s: float
) -> dict[str, frozenset[str]]:
    """The workers beside `me` with a ready engine that answers and an open gate, heard of lately.

    By name, with the runs that each refuses. Blocks on Redis; LedgerError.
    """
    return {
        name: frozenset(row.get("refuses", ()))
        for name, row in sorted(ledger.workers().items())
        if name != me
        and row.get("queue") == queue
        and row.get("engine") == "ready"
        and not row.get("sick")
        and not row.get("gate_closed")
        and row["silent_s"] <= heard_within_s
    }
