"""The ledger: who holds which batch, what is kept, what is done (Redis, Lua, server time)."""

from dflashq.ledger.hints import Hints
from dflashq.ledger.keeper import LeaseKeeper
from dflashq.ledger.ledger import Ledger
from dflashq.ledger.records import Claim, Kept, Lease, RunStatus

__all__ = ["Claim", "Hints", "Kept", "Lease", "LeaseKeeper", "Ledger", "RunStatus"]
