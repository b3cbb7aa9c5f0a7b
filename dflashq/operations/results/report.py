"""The samples of a run in numbers: counts, lengths, verdicts, duplicates, acceptance."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from dflashq.blobs.s3 import Blobs
from dflashq.core.training_data.length_histogram import LengthHistogram
from dflashq.operations.results.samples import Progress, Sample, samples, snapshot

SHOWN_TEXT = 80  # characters of a repeated text
LENGTHS = ("prompt", "output", "thinking", "answer")


@dataclass(slots=True)
class GroupStats:
    """The samples of one domain or source; `outputs` are the output tokens of accepted ones."""

    accepted: int = 0
    rejected: int = 0
    outputs: LengthHistogram = field(default_factory=LengthHistogram)

    def to_json(self) -> dict[str, Any]:
        return {
            "accepted": self.accepted,
            "rejected": self.rejected,
            "output_tokens": self.outputs.total,
            "mean_output": round(self.outputs.mean, 1),
            "median_output": self.outputs.percentile(0.5),
        }


@dataclass(slots=True)
class DuplicateTexts:
    """Texts that occur more than once, compared by a 64-bit hash.

    `times` counts each text by its hash, `shown` has the beginning of each that was repeated,
    `repeated` counts every text after the first of its kind.
    """

    times: dict[int, int] = field(default_factory=dict)
    shown: dict[int, str] = field(default_factory=dict)
    repeated: int = 0

    def add(self, body: bytes, text: str) -> None:
        """Count the text whose identity is `body`; `text` is what people are shown of it."""
        key = int.from_bytes(hashlib.blake2b(body, digest_size=8).digest(), "big")
        times = self.times.get(key, 0) + 1
        self.times[key] = times
        if times > 1:
            self.repeated += 1
            self.shown.setdefault(key, text[:SHOWN_TEXT])

    def to_json(self) -> dict[str, Any]:
        total = sum(self.times.values())
        most = sorted(self.shown, key=lambda key: -self.times[key])[:5]
        return {
            "repeated": self.repeated,
            "share": round(self.repeated / total, 4) if total else 0.0,
            "most": [{"times": self.times[key], "text": self.shown[key]} for key in most],
        }


@dataclass(slots=True)
class RunSummary:
    """The samples of a run in numbers; lengths are in tokens, of accepted samples.

    Lengths of prompts and outputs are counted by generation. Those of thinking and answers are
    counted by sample, since a sample has only their sums over its turns. `speculated` counts the
    output tokens of generations that have an accept length, `steps` the verification steps that
    these took: their quotient is the mean accept length.
    """

    run: str
    prompts: int
    accepted: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    generations: int = 0
    finish_reasons: Counter[str] = field(default_factory=Counter)
    engines: Counter[str] = field(default_factory=Counter)
    attempts: Counter[int] = field(default_factory=Counter)
    lengths: dict[str, LengthHistogram] = field(
        default_factory=lambda: {name: LengthHistogram() for name in LENGTHS}
    )
    domains: dict[str, GroupStats] = field(default_factory=dict)
    sources: dict[str, GroupStats] = field(default_factory=dict)
    outputs: DuplicateTexts = field(default_factory=DuplicateTexts)
    answers: DuplicateTexts = field(default_factory=DuplicateTexts)
    speculated: int = 0
    steps: float = 0.0

    def add(self, sample: Sample) -> None:
        """Count one sample, accepted or rejected."""
        groups = (
            self.domains.setdefault(sample.get("domain", ""), GroupStats()),
            self.sources.setdefault(sample.get("source", ""), GroupStats()),
        )
        reason = sample.get("reason")
        if reason is not None:
            self.rejected[reason] += 1
            for group in groups:
                group.rejected += 1
            return
        self.accepted += 1
        self.attempts[sample["attempt"]] += 1
        usage = sample["usage"]
        self.lengths["thinking"].add(usage["reasoning_tokens"])
        self.lengths["answer"].add(usage["completion_tokens"] - usage["reasoning_tokens"])
        for group in groups:
            group.accepted += 1
            group.outputs.add(usage["completion_tokens"])
        self._add_generations(sample)

    def _add_generations(self, sample: Sample) -> None:
        answers = [message for message in sample["messages"] if message["role"] == "assistant"]
        for generation, message in zip(sample["generations"], answers, strict=True):
            output = generation["output_ids"]
            self.generations += 1
            self.finish_reasons[generation["finish_reason"]] += 1
            self.engines[generation["engine"]] += 1
            self.lengths["prompt"].add(len(generation["prompt_ids"]))
            self.lengths["output"].add(len(output))
            accept = generation["spec_accept_length"]
            if accept > 0:
                self.speculated += len(output)
                self.steps += len(output) / accept
            text = message["content"] or message["tool_calls"]
            self.outputs.add(json.dumps(output).encode(), text)
            self.answers.add((message["content"] + "\0" + message["tool_calls"]).encode(), text)

    def to_json(self) -> dict[str, Any]:
        length, share = self.lengths["output"].most_common()
        return {
            "run": self.run,
            "prompts": self.prompts,
            "accepted": self.accepted,
            "rejected": dict(self.rejected.most_common()),
            "generations": self.generations,
            "finish_reasons": dict(self.finish_reasons.most_common()),
            "attempts": {str(n): count for n, count in sorted(self.attempts.items())},
            "engines": dict(self.engines.most_common()),
            "lengths": {name: lengths.to_json() for name, lengths in self.lengths.items()},
            "commonest_output": {"length": length, "share": round(share, 4)},
            "domains": _groups(self.domains),
            "sources": _groups(self.sources),
            "repeated_outputs": self.outputs.to_json(),
            "repeated_answers": self.answers.to_json(),
            "accept_length": round(self.speculated / self.steps, 3) if self.steps else 0.0,
        }


def _groups(groups: dict[str, GroupStats]) -> dict[str, Any]:
    return {name: group.to_json() for name, group in sorted(groups.items())}


def summarise(blobs: Blobs, run: str, progress: Progress | None = None) -> dict[str, Any]:
    """Summarise every committed sample of a run: `RunSummary.to_json`, and `missing`.

    `missing` names the batches that are not committed yet. Blocks on S3 and changes nothing; holds
    a hash for each answer. UnknownRunError for an unknown run, ConflictError for a damaged object.
    """
    committed = snapshot(blobs, run)
    summary = RunSummary(run, committed.record.prompts)
    for sample in samples(blobs, committed, rejected=True, progress=progress):
        summary.add(sample)
    return summary.to_json() | {"missing": list(committed.missing)}


def differences(first: dict[str, Any], other: dict[str, Any]) -> list[tuple[str, float, float]]:
    """(what, in the first, in the other) for the numbers that two summaries are compared by.

    The summaries are those of `summarise`.
    """
    reasons = sorted({*first["rejected"], *other["rejected"]})
    rows = [
        ("accepted", *_shares(first, other, lambda s: s["accepted"])),
        *(
            (why, *_shares(first, other, lambda s, w=why: s["rejected"].get(w, 0)))
            for why in reasons
        ),
    ]
    for name in LENGTHS:
        for key in ("mean", "median", "p90", "p99"):
            rows.append((f"{name} {key}", first["lengths"][name][key], other["lengths"][name][key]))
    for key in ("repeated_outputs", "repeated_answers"):
        rows.append((key.replace("_", " "), first[key]["share"], other[key]["share"]))
    rows.append(("accept length", first["accept_length"], other["accept_length"]))
    return rows


def _shares(first: dict[str, Any], other: dict[str, Any], of: Any) -> Iterable[float]:
    for summary in (first, other):
        settled = summary["accepted"] + sum(summary["rejected"].values())
        yield round(of(summary) / settled, 4) if settled else 0.0
