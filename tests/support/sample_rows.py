"""Runs whose samples are written by hand, for tests of what reads whole samples."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dflashq.blobs.commits import write_commit
from dflashq.blobs.s3 import Blobs
from dflashq.core import codec
from dflashq.core.generations.sample_rows import rejected_row, sample_row
from dflashq.core.model import Generation, ObjectRef, Prompt, RunRecord, Verdict

END, CLOSE = 2, 7
DOMAINS = ("coding", "general", "math")


def generation(index: int, turn: int = 0, output: int = 40) -> Generation:
    """Ids that say whose they are: prompt 10 + index ids, output of `output` ids."""
    prompt_ids = [100 + turn] * (10 + index)
    output_ids = [1000 + index] * (output - 11) + [CLOSE] + [2000 + index] * 9 + [END]
    accept = {"spec_accept_length": 3.0, "latency_s": 1.5, "engine": "e1"}
    return Generation(prompt_ids, output_ids, "stop", matched=END, **accept)  # type: ignore[arg-type]


def sample(index: int, turns: int = 1, output: int = 40, **given: Any) -> dict[str, Any]:
    """An accepted sample of so many turns, its thinking in front of its answer."""
    domain = given.pop("domain", DOMAINS[index % 3])
    prompt = Prompt(
        index, f"p{index}", [{"role": "user", "content": "q"}], source="s", domain=domain, **given
    )
    messages: list[dict[str, Any]] = []
    for turn in range(turns):
        messages.append({"role": "user", "content": f"question {index}.{turn}"})
        messages.append(
            {
                "role": "assistant",
                "content": f"answer {index}.{turn}",
                "reasoning_content": f"thought {index}.{turn}",
            }
        )
    generations = [generation(index, turn, output) for turn in range(turns)]
    return sample_row(prompt, messages, generations, turns * (output - 10), 1)


def bad(index: int, reason: str) -> dict[str, Any]:
    """The same, rejected."""
    return rejected_row(sample(index), Verdict(reason, f"it was {reason}"))


def commit(
    blobs: Blobs,
    record: RunRecord,
    batch: str,
    accepted: Iterable[dict[str, Any]],
    rejected: Iterable[dict[str, Any]] = (),
) -> ObjectRef:
    """Put a batch's commit objects, as a worker would."""
    good, refused = list(accepted), list(rejected)
    counts = {"prompts": len(good) + len(refused), "accepted": len(good)}
    for row in refused:
        counts[f"rejected_{row['reason']}"] = counts.get(f"rejected_{row['reason']}", 0) + 1
    ref = write_commit(
        *(blobs, record.name, batch, record.fingerprint, codec.encode_rows(good)),
        codec.encode_rows(refused) if refused else None,
        counts,
    )
    assert ref is not None
    return ref
