"""The proof, from S3 alone: every index of a run in exactly one committed place."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dflashq.blobs import runs
from dflashq.blobs.commits import Commit, read_commit
from dflashq.blobs.s3 import Blobs
from dflashq.core import keys
from dflashq.core.errors import BlobMissingError, ConflictError, DflashqError
from dflashq.core.humanize import counted
from dflashq.core.model import RunRecord

ACCEPTED = "accepted"


@dataclass(slots=True)
class VerifyReport:
    """What `verify` read; clean when `problems` is empty and no batch is missing.

    `committed` counts the committed of the `batches`, revisions not among them; `rejected` counts
    prompts by reason. `objects` has a row for every committed batch, for the manifest: its object,
    its sha256, its indexes and what it rejected.
    """

    run: str
    fingerprint: str
    prompts: int
    batches: int
    committed: int = 0
    accepted: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    output_tokens: int = 0
    missing: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    objects: list[dict[str, Any]] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Every index exactly once, every hash right, nothing foreign."""
        return not self.problems and not self.missing


def verify(
    blobs: Blobs, run: str, progress: Callable[[int, int], None] | None = None
) -> VerifyReport:
    """Read every committed object of a run and account for every index.

    Blocks on S3 and changes nothing. `progress(done, of)` is called after every batch. Whatever is
    wrong with the run becomes a problem in the report; UnknownRunError when there is no such run.
    """
    record = runs.read_run(blobs, run)
    report = VerifyReport(run, record.fingerprint, record.prompts, len(record.batches))
    _check_ranges(record, report)
    revisions = runs.revisions(blobs, run)
    _check_foreign(blobs, record, {r.batch.name for r in revisions}, report)
    homes: dict[int, str] = {}
    total = len(record.batches) + len(revisions)
    for number, batch in enumerate(record.batches, 1):
        commit = _commit(blobs, record, batch.name, set(range(batch.first, batch.last + 1)), report)
        if commit is not None:
            report.committed += 1
            _settle(commit, homes)
        if progress is not None:
            progress(number, total)
    for number, revision in enumerate(revisions, len(record.batches) + 1):
        _supersede(blobs, record, revision, homes, report)
        if progress is not None:
            progress(number, total)
    _sum_up(record, homes, report)
    _compare_manifest(blobs, report)
    return report


def _compare_manifest(blobs: Blobs, report: VerifyReport) -> None:
    """What the manifest of a finished run names must still be on S3, byte for byte."""
    try:
        manifest = json.loads(blobs.get(keys.manifest_json(report.run)).body)
    except BlobMissingError:
        return
    if manifest["fingerprint"] != report.fingerprint:
        report.problems.append("manifest.json belongs to another run")
    actual = {row["batch"]: row["sha256"] for row in report.objects}
    for row in manifest["objects"]:
        if actual.get(row["batch"]) != row["sha256"]:
            report.problems.append(
                f"{row['batch']}: the manifest names sha256 {row['sha256'][:12]}…, found "
                f"{actual.get(row['batch'], 'nothing')[:12]}"
            )


def _check_ranges(record: RunRecord, report: VerifyReport) -> None:
    """The batches must cover 0..prompts-1 without a gap: then theirs prove the run's index set."""
    expected = 0
    for batch in record.batches:
        if batch.first != expected or batch.last - batch.first + 1 != batch.prompts:
            report.problems.append(f"run.json: {batch.name} covers {batch.first}..{batch.last}")
        expected = batch.last + 1
    if expected != record.prompts:
        report.problems.append(f"run.json: its batches cover {expected} of {record.prompts}")


def _check_foreign(
    blobs: Blobs, record: RunRecord, revisions: set[str], report: VerifyReport
) -> None:
    known = {batch.name for batch in record.batches} | revisions
    for key in blobs.list(keys.completions_prefix(record.name)):
        if key.rpartition("/")[2].removesuffix(".jsonl.zst") not in known:
            report.problems.append(f"{key} belongs to no batch of this run")


def _commit(
    blobs: Blobs, record: RunRecord, batch: str, indexes: set[int], report: VerifyReport
) -> Commit | None:
    """A committed batch, its counts compared; None, with a problem, when missing or not ours."""
    try:
        commit = read_commit(blobs, record.name, batch, record.fingerprint, indexes)
    except BlobMissingError:
        report.missing.append(f"{batch}: {counted(len(indexes), 'prompt')} not committed yet")
        return None
    except (ConflictError, ValueError, KeyError, TypeError) as exc:
        # The last three: rows that no worker wrote, under metadata that claims it.
        report.problems.append(f"{batch}: {exc if str(exc) else type(exc).__name__}")
        return None
    counts = Counter(commit.reasons.values())
    stated = {
        k.removeprefix("rejected_"): v for k, v in commit.ref.counts.items() if "rejected_" in k
    }
    if len(commit.accepted) != commit.ref.counts.get(ACCEPTED, 0) or counts != Counter(stated):
        report.problems.append(f"{batch}: its rows are not what its metadata counts")
    report.output_tokens += commit.ref.counts.get("output_tokens", 0)
    report.objects.append(_object_row(batch, commit, indexes))
    return commit


def _object_row(batch: str, commit: Commit, indexes: set[int]) -> dict[str, Any]:
    """The manifest's row of a batch; its accepted indexes are `indexes` without the rejected."""
    ref = commit.ref
    is_range = len(indexes) == max(indexes) - min(indexes) + 1
    return {
        "batch": batch,
        "key": ref.key,
        "sha256": ref.sha256,
        "rejected_key": ref.rejected_key,
        "rejected_sha256": ref.rejected_sha256,
        "indexes": [min(indexes), max(indexes)] if is_range else sorted(indexes),
        "is_range": is_range,
        "rejected": {str(index): why for index, why in sorted(commit.reasons.items())},
        "rows": len(commit.accepted),
        "tokens": ref.counts.get("output_tokens", 0),
    }


def _settle(commit: Commit, homes: dict[int, str]) -> None:
    homes |= dict.fromkeys(commit.accepted, ACCEPTED)
    homes |= commit.reasons


def _supersede(
    blobs: Blobs,
    record: RunRecord,
    revision: runs.Revision,
    homes: dict[int, str],
    report: VerifyReport,
) -> None:
    """A committed revision takes the place of the rejected rows it runs again."""
    name = revision.batch.name
    try:
        indexes = {prompt.index for prompt in runs.read_prompts(blobs, revision.batch)}
    except DflashqError as exc:
        report.problems.append(f"{name}: its prompts cannot be read: {exc}")
        return
    twice = sorted(index for index in indexes if homes.get(index) == ACCEPTED)
    if twice:
        report.problems.append(f"{name}: {len(twice)} indexes were accepted before: {twice[:5]}")
    commit = _commit(blobs, record, name, indexes, report)
    if commit is not None:
        _settle(commit, homes)


def _sum_up(record: RunRecord, homes: dict[int, str], report: VerifyReport) -> None:
    counts = Counter(homes.values())
    report.accepted = counts.pop(ACCEPTED, 0)
    report.rejected = dict(sorted(counts.items()))
    lost = record.prompts - len(homes)
    if lost and not report.missing and not report.problems:
        report.problems.append(f"{lost} prompts have no place")
