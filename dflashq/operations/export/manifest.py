"""export.json: the options of an export, and which of its shards are finished."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from dflashq import __version__
from dflashq.core.errors import ConflictError, UsageError
from dflashq.operations.export.targets import Target

NAME = "export.json"


@dataclass(slots=True)
class ShardRecord:
    """One finished shard. `tokens` counts all ids, `supervised` those that the loss is on."""

    name: str
    rows: int
    tokens: int
    supervised: int
    bytes: int
    sha256: str


@dataclass(slots=True)
class Manifest:
    """The record of one export at its target, saved after every shard; `result` comes last."""

    spec: dict[str, Any]
    shards: dict[str, ShardRecord] = field(default_factory=dict)
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
            "shards": [asdict(record) for record in self.shards.values()],
        }

    def save(self, target: Target) -> None:
        target.put(NAME, json.dumps(self.to_json(), ensure_ascii=False, indent=1).encode())

    def check(self, target: Target, name: str) -> bool:
        """Whether a recorded shard is at the target. Blocks.

        ConflictError when its bytes are not those that were recorded.
        """
        sha256 = target.sha256(name)
        if sha256 is not None and sha256 != self.shards[name].sha256:
            raise ConflictError(
                f"{name} in {target} is not what {NAME} records (sha256 {sha256[:12]}…, recorded "
                f"{self.shards[name].sha256[:12]}…). Delete it to have it made anew."
            )
        return sha256 is not None


def open_manifest(target: Target, spec: dict[str, Any]) -> Manifest:
    """The manifest at the target if it is of the same spec, or a new one at an empty target.

    Blocks; safe to repeat. UsageError when the target holds another export or anything else, which
    is left alone.
    """
    body = target.read(NAME)
    if body is None:
        if not target.is_empty():
            raise UsageError(
                f"{target} is not empty and has no {NAME}: give an export a place of its own. "
                "Nothing was written."
            )
        manifest = Manifest(spec)
        manifest.save(target)
        return manifest
    try:
        row = json.loads(body)
        shards = {shard["name"]: ShardRecord(**shard) for shard in row["shards"]}
        recorded, result = row["spec"], row["result"]
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"{NAME} in {target} is not one of ours. Nothing was written.") from None
    if recorded != spec:
        raise UsageError(_difference(str(target), recorded, spec))
    return Manifest(spec, shards, result)


def _difference(target: str, recorded: dict[str, Any], spec: dict[str, Any]) -> str:
    fields = [name for name in {**recorded, **spec} if recorded.get(name) != spec.get(name)]
    rows = "; ".join(f"{n}: there {recorded.get(n)!r}, asked {spec.get(n)!r}" for n in fields)
    what = "the run has gained samples since; " if "snapshot" in fields else ""
    return (
        f"{target} holds another export ({what}{rows}). It stands unchanged: use its options to "
        "continue it, or another --out."
    )
