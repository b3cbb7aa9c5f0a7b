"""export.json: what an export was asked for and which of its shards are done."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from dflashq import __version__
from dflashq.core.errors import ConflictError, UsageError
from dflashq.operations.export.targets import Target

NAME = "export.json"


@dataclass(slots=True)
class Part:
    """One finished shard. `tokens` are all ids, `supervised` those that the loss is on."""

    name: str
    rows: int
    tokens: int
    supervised: int
    bytes: int
    sha256: str


@dataclass(slots=True)
class Manifest:
    """The record of one export at its target; `save` after every shard."""

    spec: dict[str, Any]
    shards: dict[str, Part] = field(default_factory=dict)
    result: dict[str, Any] | None = None

    @property
    def complete(self) -> bool:
        return self.result is not None

    def to_json(self) -> dict[str, Any]:
        return {
            "dflashq": __version__,
            "complete": self.complete,
            "spec": self.spec,
            "result": self.result,
            "shards": [asdict(part) for part in self.shards.values()],
        }

    def save(self, target: Target) -> None:
        target.put(NAME, json.dumps(self.to_json(), ensure_ascii=False, indent=1).encode())

    def check(self, target: Target, name: str) -> bool:
        """Whether a recorded shard is there; ConflictError when it is not what was recorded."""
        found = target.sha256(name)
        if found is not None and found != self.shards[name].sha256:
            raise ConflictError(
                f"{name} in {target} is not what {NAME} records (sha256 {found[:12]}…, recorded "
                f"{self.shards[name].sha256[:12]}…). Delete it to have it made anew."
            )
        return found is not None


def open_manifest(target: Target, spec: dict[str, Any]) -> Manifest:
    """The manifest that is there when it is of the same spec, else a new one at an empty target.

    UsageError when another export, or something else, is there: nothing of it is touched.
    """
    body = target.read(NAME)
    if body is None:
        if not target.is_empty():
            raise UsageError(
                f"{target} is not empty and has no {NAME}: give an export a place of its own. "
                "Nothing was written."
            )
        made = Manifest(spec)
        made.save(target)
        return made
    try:
        row = json.loads(body)
        parts = {part["name"]: Part(**part) for part in row["shards"]}
        there, result = row["spec"], row["result"]
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"{NAME} in {target} is not one of ours. Nothing was written.") from None
    if there != spec:
        raise UsageError(_differs(str(target), there, spec))
    return Manifest(spec, parts, result)


def _differs(target: str, there: dict[str, Any], asked: dict[str, Any]) -> str:
    fields = [name for name in {**there, **asked} if there.get(name) != asked.get(name)]
    rows = "; ".join(f"{n}: there {there.get(n)!r}, asked {asked.get(n)!r}" for n in fields)
    what = "the run has gained samples since; " if "snapshot" in fields else ""
    return (
        f"{target} holds another export ({what}{rows}). It stands unchanged: use its options to "
        "continue it, or another --out."
    )
