"""The runs that the ledger lists, with their counts."""

from __future__ import annotations

from dflashq.core.errors import UnknownRunError
from dflashq.ledger import Ledger
from dflashq.ledger.models import RunStatus


def statuses(ledger: Ledger) -> list[RunStatus]:
    """The counts of every run, by name; a run that is listed without keys is left out.

    Blocks on Redis. LedgerError.
    """
    listed = (status_if_known(ledger, run) for run in sorted(ledger.runs()))
    return [status for status in listed if status is not None]


def status_if_known(ledger: Ledger, run: str) -> RunStatus | None:
    """The counts of a run; None when it has no keys.

    The list of the runs and the keys of a run are apart in Redis: a wiped or evicted run stays
    listed. Blocks on Redis. LedgerError.
    """
    try:
        return ledger.status(run)
    except UnknownRunError:
        return None
