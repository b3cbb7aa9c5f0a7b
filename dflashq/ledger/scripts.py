"""The Lua scripts as they lie in `lua/`: one a state change, each behind the shared prelude."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files

from dflashq.core import keys
from dflashq.ledger.refusal import Need

PARTS = (
    "run",
    "pending",
    "leased",
    "leases",
    "attempts",
    "done",
    "dead",
    "story",
    "counters",
)
# The key of the scripts about workers, which belong to no run.
WORKER_KEYS = (keys.WORKERS,)

# Read at once, not when a script is first called: days later the process may be out of
# descriptors, or a newer version may lie there.
TEXTS = {
    entry.name.removesuffix(".lua"): entry.read_text()
    for entry in (files("dflashq.ledger") / "lua").iterdir()
    if entry.name.endswith(".lua")
}


@cache
def source(name: str) -> str:
    """The text of one script with the prelude; a shebang line stays the first."""
    prelude, body = TEXTS["prelude"], TEXTS[name]
    shebang, rest = ("", body)
    if body.startswith("#!"):
        shebang, _, rest = body.partition("\n")
        shebang += "\n"
    return f"{shebang}{prelude}\n{rest}"


@cache
def need(name: str) -> Need:
    """What a script asks of Redis, by its shebang: one with flags is refused as a whole."""
    shebang = source(name).partition("\n")[0]
    if not shebang.startswith("#!"):
        return Need.ANSWER  # as far as is known: it may have returned before it wrote
    return Need.WRITE if "allow-oom" in shebang else Need.ROOM


@cache
def sha1(name: str) -> str:
    """The name under which Redis caches a script."""
    return hashlib.sha1(source(name).encode(), usedforsecurity=False).hexdigest()


@cache
def run_keys(run: str, stage: str) -> tuple[str, ...]:
    """The keys of a stage of a run in the order that every script expects."""
    return tuple(keys.ledger_key(run, part, stage) for part in PARTS)
