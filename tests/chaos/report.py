"""The verdict on a chaos: what was lost, committed twice or generated again."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from dflashq.blobs.commits import rejected_rows
from dflashq.core import codec, keys
from dflashq.core.model import RunRecord
from tests.chaos.observed_leases import ObservedLeases
from tests.support.engine_emulator import prompt_hash
from tests.support.fault_fleet import FaultFleet, engine_events

# A request may be on its way to the engine while the answer to another one is being kept.
TOLERANCE_S = 0.25
CRASH = "engine_crash"
# What the ledger says of an attempt that ended with its worker.
KILLED = ("fell silent past its lease", "died and came back", "started anew")


@dataclass(slots=True)
class Outcome:
    """Counts and findings over all runs; `clean` is the only pass.

    `crashed` and `refused` count rejected prompts that are no fault of the fleet.
    """

    prompts: int = 0
    batches: int = 0
    lost: int = 0
    doubled: int = 0
    regenerated: int = 0
    crashed: int = 0
    refused: int = 0
    dead: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    again: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return not (self.lost or self.doubled or self.regenerated or self.problems)


def note_dead(fault_fleet: FaultFleet, run: str, outcome: Outcome) -> None:
    """Add every dead batch with its reason; a problem unless kills alone ended its attempts."""
    for batch, reason in fault_fleet.ledger.status(run).dead.items():
        outcome.dead.append(f"{run}/{batch}: {reason}")
        story = [row["what"] for row in fault_fleet.ledger.story(run, batch)]
        kills = sum(map(is_kill, story))
        if not is_kill(reason) or kills < fault_fleet.settings.attempts:
            outcome.problems.append(f"{run}/{batch} is dead without {kills=}: {story}")


def is_kill(sentence: str) -> bool:
    """Whether a line of a batch's story says that its holder was killed, or was as good as that."""
    return any(words in sentence for words in KILLED)


def check_rejections(run: str, reasons: dict[int, str], expected: dict[int, str]) -> str:
    """A sentence on rejections that should not be, or are missing; empty when all is right.

    Any prompt that was in flight at several deaths of its engine may be rejected as the cause.
    """
    counted = {index: reason for index, reason in reasons.items() if reason != CRASH}
    missing = {n: why for n, why in expected.items() if n not in reasons}
    others = {n: why for n, why in counted.items() if expected.get(n) != why}
    if not missing and not others:
        return ""
    return f"{run}: not rejected: {missing}, wrongly rejected: {others}"


def account(
    fault_fleet: FaultFleet, record: RunRecord, expected: dict[int, str], outcome: Outcome
) -> dict[str, str]:
    """Count every index of a run in the objects that S3 lists, and run the oracle.

    `expected` are the reasons of the prompts that must be rejected. Returns the batch of each
    committed generation, by the hash of its prompt.
    """
    occurrences: Counter[int] = Counter()
    reasons: dict[int, str] = {}
    batch_of: dict[str, str] = {}
    for key in fault_fleet.blobs.list(keys.completions_prefix(record.name)):
        batch = key.rpartition("/")[2].removesuffix(".jsonl.zst")
        rows = list(codec.decode_rows(fault_fleet.blobs.get(key).body))
        ref = fault_fleet.ledger.done(record.name).get(batch)
        rows += list(rejected_rows(fault_fleet.blobs, ref)) if ref is not None else []
        occurrences.update(row["index"] for row in rows)
        for row in rows:
            if row.get("reason"):
                reasons[row["index"]] = row["reason"]
            for generation in row.get("generations", ()):
                batch_of[prompt_hash(generation["prompt_ids"])] = batch
    outcome.crashed += sum(reason == CRASH for reason in reasons.values())
    outcome.refused += sum(reasons.get(n) == why for n, why in expected.items())
    if wrong := check_rejections(record.name, reasons, expected):
        outcome.problems.append(wrong)
    outcome.prompts += record.prompts
    outcome.batches += len(record.batches)
    outcome.lost += len(set(range(record.prompts)) - set(occurrences))
    outcome.doubled += sum(count - 1 for count in occurrences.values())
    try:
        fault_fleet.oracle(record.name)
    except AssertionError as exc:
        outcome.problems.append(f"{record.name}: {str(exc).splitlines()[0][:300]}")
    return batch_of


def find_regenerated(
    stats: Path, observed: ObservedLeases, batch_of: dict[tuple[str, str], str], outcome: Outcome
) -> None:
    """Count requests that an engine received after their generation was kept, or its batch done."""
    known = dict(observed.kept)
    for (run, prompt), batch in batch_of.items():
        done = observed.done.get((run, batch))
        if done is not None:
            known[prompt] = min(done, known.get(prompt, done))
    for row in engine_events(stats):
        if row["event"] == "received" and row["t"] > known.get(row["prompt"], 1e18) + TOLERANCE_S:
            outcome.regenerated += 1
            late = row["t"] - known[row["prompt"]]
            outcome.again.append(
                f"prompt {row['prompt']} by engine {row['pid']}, {late:.1f} s after it was kept, "
                f"at {row['t']:.1f}"
            )


def recovery(observed: ObservedLeases) -> list[str]:
    """Median and maximum of the seconds from a fault to the lease's end and to its next holder."""
    freed = [loss.freed - loss.began for loss in observed.losses if loss.freed is not None]
    back = [loss.ended - loss.began for loss in observed.losses if loss.ended is not None]
    rows = [
        f"{len(observed.losses)} leases taken away, {len(observed.losses) - len(back)} for good"
    ]
    for what, times in (("free again", freed), ("at work again", back)):
        if times:
            middle, worst = statistics.median(times), max(times)
            rows.append(f"{what} after {middle:.1f} s (median), {worst:.1f} s (max)")
    slow = sorted(observed.losses, key=lambda loss: (loss.ended or 1e18) - loss.began)[-3:]
    rows += [
        f"slow: {loss.run}/{loss.batch} lost at {datetime.fromtimestamp(loss.began):%H:%M:%S}, "
        f"free {(loss.freed or 0) - loss.began:.1f} s later, "
        f"leased {(loss.ended or 0) - loss.began:.1f} s later"
        for loss in slow
    ]
    return rows
