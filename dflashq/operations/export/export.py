"""Export: the accepted samples of a run, in the form that a trainer reads, as resumable shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any
from urllib.parse import quote

from dflashq.blobs.s3 import Blobs
from dflashq.core.errors import DflashqError, UsageError
from dflashq.core.humanize import counted
from dflashq.core.training_data.domain_mix import Key, Mix, Quota
from dflashq.core.training_data.rows import (
    CUT,
    DROP,
    MIN_SUPERVISED,
    Packer,
    Row,
    rows_of,
    truncate_row,
)
from dflashq.operations.export.formats import FORMATS, Sample, packed_shard
from dflashq.operations.export.manifest import Manifest, ShardRecord, open_manifest
from dflashq.operations.export.shards import ShardWriter
from dflashq.operations.export.targets import Target
from dflashq.operations.results.samples import CommittedRun, samples, snapshot

Progress = Callable[[str, int, int], None]
UNNAMED = "unnamed"


@dataclass(frozen=True, slots=True)
class Request:
    """What to export, and how.

    Lengths are in ids. `over` says what becomes of a row longer than `max_length`: it is dropped,
    or cut at its end, but never so that fewer than `floor` supervised ids are left. `mix` maps
    domains to weights by supervised tokens, `mix_tokens` is the sum of its quotas. `partial` allows
    a run with uncommitted batches. The field names are part of export.json.
    """

    run: str
    to: str
    shard_rows: int = 5000
    max_length: int | None = None
    over: str = DROP
    floor: int = MIN_SUPERVISED
    pack: int | None = None
    split_by_domain: bool = False
    mix: dict[str, float] | None = None
    mix_tokens: int | None = None
    seed: int = 0
    partial: bool = False

    def spec(self, committed: CommittedRun) -> dict[str, Any]:
        """What decides the bytes: two exports of one spec are the same, byte for byte."""
        options = asdict(self)
        del options["partial"]
        fingerprint = committed.record.fingerprint
        return {**options, "fingerprint": fingerprint, "snapshot": committed.digest}


@dataclass(slots=True)
class ExportResult:
    """What an export holds. The field names are part of the JSON of `dflashq export`.

    `tokens` counts all ids, `supervised` those that the loss is on. `dropped` and `cut` count rows
    that were too long, `short` those with fewer supervised ids than the floor, which are kept.
    `domains` has the counts by domain, `missing` the batches that are not committed. `mix` has the
    quotas, `scarcest` the domain that limits the others, `left_out` the rows of domains without a
    share. `again`: nothing was written, since everything was at the target already.
    """

    target: str
    shards: list[ShardRecord]
    rows: int
    tokens: int
    supervised: int
    dropped: int
    cut: int
    short: int
    domains: dict[str, dict[str, int]]
    missing: list[str] = field(default_factory=list)
    mix: list[dict[str, Any]] = field(default_factory=list)
    scarcest: str = ""
    left_out: dict[str, int] = field(default_factory=dict)
    again: bool = False


def export(blobs: Blobs, target: Target, request: Request, progress: Progress) -> ExportResult:
    """Write the shards that the target lacks. Blocks; safe to repeat and to interrupt.

    Reads the run from S3, twice for a mix; `progress(what, done, of)` is called after every batch.
    UsageError for options that do not go together and for a target that holds something else;
    DflashqError for a run that is not finished, unless `partial`; ConflictError for a damaged
    object or shard.
    """
    _check_options(request)
    committed = snapshot(blobs, request.run)
    if committed.missing and not request.partial:
        raise DflashqError(
            f"run {request.run!r} is not finished: {counted(len(committed.missing), 'batch')} not "
            f"committed (the first is {committed.missing[0]}). --partial exports what there is. "
            "Nothing was written."
        )
    manifest = open_manifest(target, request.spec(committed))
    if manifest.complete and all(manifest.check(target, n) for n in manifest.shards):
        return _result(target, manifest, again=True)
    return _Export(blobs, target, request, committed, manifest, progress).run()


def _check_options(request: Request) -> None:
    if request.pack is not None and request.to != "parquet":
        raise UsageError(
            "--pack goes with --to parquet alone: the other readers know no boundaries and would "
            "let one row attend to the next"
        )
    if request.over == CUT and not FORMATS[request.to].tokens:
        raise UsageError("--over cut needs rows of ids; conversations can only be dropped")
    if request.over == CUT and request.max_length is None and request.pack is None:
        raise UsageError("--over says what to do with rows over --max-length: give one")
    if request.mix_tokens is not None and request.mix is None:
        raise UsageError("--mix-tokens is the sum of the quotas of --mix: give it, too")
    longest = request.max_length or request.pack
    if request.pack is not None and longest is not None and longest > request.pack:
        raise UsageError("--max-length is more than --pack: such rows fit no pack")


class _Export:
    """One pass of an export; `run` blocks to its end."""

    def __init__(
        self,
        blobs: Blobs,
        target: Target,
        request: Request,
        committed: CommittedRun,
        manifest: Manifest,
        progress: Progress,
    ) -> None:
        self._blobs, self._target, self._request = blobs, target, request
        self._committed, self._manifest, self._progress = committed, manifest, progress
        self._format = FORMATS[request.to]
        self._writers: dict[str, ShardWriter] = {}
        self._packers: dict[str, Packer] = {}
        self._counts: Counter[str] = Counter()
        self._domains: dict[str, Counter[str]] = {}

    def run(self) -> ExportResult:
        chosen, mix = self._choose_for_mix()
        # The pass for the mix counted the same rows.
        self._counts.clear()
        for row, sample in self._rows("exporting batches"):
            if chosen is None or (row.index, row.turn) in chosen:
                self._write(row, sample)
        for folder, packer in self._packers.items():
            for pack in packer.rest():
                self._writer(folder).add(pack.to_json(), len(pack.rows))
        for writer in self._writers.values():
            writer.close()
        self._manifest.shards = {
            record.name: record for writer in self._writers.values() for record in writer.records
        }
        counts = {name: self._counts[name] for name in ("dropped", "cut", "short")}
        domains = {domain: dict(tally) for domain, tally in sorted(self._domains.items())}
        missing = list(self._committed.missing)
        self._manifest.result = {**counts, "domains": domains, "missing": missing, **mix}
        self._manifest.save(self._target)
        return _result(self._target, self._manifest)

    def _rows(self, what: str) -> Iterator[tuple[Row, Sample]]:
        """Every row that fits, with its sample, in index order."""
        request = self._request
        longest = request.max_length or request.pack
        progress = partial(self._progress, what)
        for sample in samples(self._blobs, self._committed, progress=progress):
            for row in rows_of(sample):
                fit = truncate_row(row, longest, request.over, request.floor)
                self._counts["dropped"] += fit is None
                self._counts["cut"] += fit is not None and fit is not row
                if fit is not None:
                    yield fit, sample

    def _choose_for_mix(self) -> tuple[set[Key] | None, dict[str, Any]]:
        """The chosen rows (None: all), and what the result says of the mix."""
        if self._request.mix is None:
            return None, {}
        mix = Mix(self._request.mix, self._request.seed)
        for row, _ in self._rows("measuring for the mix"):
            mix.add(row.domain, (row.index, row.turn), row.supervised)
        if self._request.mix_tokens is None and not any(mix.quotas(None).values()):
            raise UsageError(
                f"the mix is empty: domain {mix.scarcest!r} has no rows that fit. Its name may be "
                "another (`dflashq report` lists them), or give --mix-tokens to do without it."
            )
        chosen, quotas = mix.choose(self._request.mix_tokens)
        result = {
            "mix": [_quota(quota) for quota in quotas],
            "scarcest": mix.scarcest,
            "left_out": mix.left_out,
        }
        return chosen, result

    def _write(self, row: Row, sample: Sample) -> None:
        folder = _folder(row.domain) if self._request.split_by_domain else ""
        domain = self._domains.setdefault(row.domain, Counter())
        domain.update(rows=1, tokens=len(row.input_ids), supervised=row.supervised)
        self._counts["short"] += row.supervised < self._request.floor
        if self._request.pack is None:
            self._writer(folder).add(self._format.encode(row, sample), 1, row)
            return
        packer = self._packers.setdefault(folder, Packer(self._request.pack))
        for pack in packer.add(row):
            self._writer(folder).add(pack.to_json(), len(pack.rows))

    def _writer(self, folder: str) -> ShardWriter:
        if folder not in self._writers:
            self._writers[folder] = ShardWriter(
                self._target,
                self._manifest,
                folder,
                self._format,
                self._format.shard if self._request.pack is None else packed_shard,
                self._request.shard_rows,
            )
        return self._writers[folder]


def _folder(domain: str) -> str:
    """A domain as the name of a folder, quoted so that it cannot lead out of the target."""
    name = quote(domain, safe="") or UNNAMED
    return f"%2E{name[1:]}/" if name.startswith(".") else f"{name}/"


def _quota(quota: Quota) -> dict[str, Any]:
    return {**asdict(quota), "short": quota.short}


def _result(target: Target, manifest: Manifest, *, again: bool = False) -> ExportResult:
    records = list(manifest.shards.values())
    return ExportResult(
        target=str(target),
        shards=records,
        rows=sum(record.rows for record in records),
        tokens=sum(record.tokens for record in records),
        supervised=sum(record.supervised for record in records),
        again=again,
        **(manifest.result or {}),
    )
