"""The ledger: who holds which batch, what is kept, what is done (Redis, Lua, server time)."""

from dflashq.ledger.heartbeat import LeaseHeartbeat
from dflashq.ledger.hints import Hints
from dflashq.ledger.ledger import Ledger
from dflashq.ledger.models import Claim, Kept, Lease, RunStatus

__all__ = ["Claim", "Hints", "Kept", "Lease", "LeaseHeartbeat", "Ledger", "RunStatus"]
