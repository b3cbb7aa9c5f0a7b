"""Export: the accepted samples of a run in the form that a trainer reads, in resumable shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any
from urllib.parse import quote

from dflashq.blobs.s3 import Blobs
from dflashq.core import codec
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
from dflashq.operations.export.formats import FORMATS, Format, Sample, Shard, packs
from dflashq.operations.export.manifest import Manifest, Part, open_manifest
from dflashq.operations.export.targets import Target
from dflashq.operations.results.samples import CommittedRun, samples, snapshot

Progress = Callable[[str, int, int], None]
PLAIN, UNNAMED = "train", "unnamed"


@dataclass(frozen=True, slots=True)
class Request:
    """What to export. Lengths are in ids; `mix` maps domains to weights by supervised tokens.

    `over` says what happens to a row longer than `max_length`: `drop`, or `cut` at its end, but
    never below `floor` supervised ids. `partial` allows a run with uncommitted batches.
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

    def spec(self, shot: CommittedRun) -> dict[str, Any]:
        """What decides the bytes: two exports of one spec are the same."""
        asked = asdict(self)
        del asked["partial"]
        return {**asked, "fingerprint": shot.record.fingerprint, "snapshot": shot.digest}


@dataclass(slots=True)
class ExportResult:
    """What an export holds. `short` rows have fewer supervised ids than the floor; they are kept.

    `again`: everything was there already.
    """

    target: str
    shards: list[Part]
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
    """Write the shards that are not there yet. Blocks; safe to repeat and to interrupt.

    Reads the run twice for a mix. UsageError for options that do not go together and for a target
    that holds something else; DflashqError for a run that is not finished, unless `partial`.
    """
    _refuse(request)
    shot = snapshot(blobs, request.run)
    if shot.missing and not request.partial:
        raise DflashqError(
            f"run {request.run!r} is not finished: {counted(len(shot.missing), 'batch')} not "
            f"committed (the first is {shot.missing[0]}). --partial exports what there is. "
            "Nothing was written."
        )
    manifest = open_manifest(target, request.spec(shot))
    if manifest.complete and all(manifest.check(target, n) for n in manifest.shards):
        return _told(target, manifest, again=True)
    return _Export(blobs, target, request, shot, manifest, progress).run()


def _refuse(request: Request) -> None:
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
        shot: CommittedRun,
        manifest: Manifest,
        progress: Progress,
    ) -> None:
        self._blobs, self._target, self._request = blobs, target, request
        self._shot, self._manifest, self._progress = shot, manifest, progress
        self._format = FORMATS[request.to]
        self._writers: dict[str, ShardWriter] = {}
        self._packers: dict[str, Packer] = {}
        self._counts: Counter[str] = Counter()
        self._domains: dict[str, Counter[str]] = {}

    def run(self) -> ExportResult:
        chosen, mixed = self._mixed()
        # The first of two passes saw the same rows: what it counted would be counted twice.
        self._counts.clear()
        for row, sample in self._rows("exporting batches"):
            if chosen is None or (row.index, row.turn) in chosen:
                self._write(row, sample)
        for part, packer in self._packers.items():
            for pack in packer.rest():
                self._writer(part).add(pack.to_json(), len(pack.rows))
        for writer in self._writers.values():
            writer.close()
        self._manifest.shards = {
            part.name: part for writer in self._writers.values() for part in writer.parts
        }
        counts = {name: self._counts[name] for name in ("dropped", "cut", "short")}
        domains = {domain: dict(found) for domain, found in sorted(self._domains.items())}
        missing = list(self._shot.missing)
        self._manifest.result = {**counts, "domains": domains, "missing": missing, **mixed}
        self._manifest.save(self._target)
        return _told(self._target, self._manifest)

    def _rows(self, what: str) -> Iterator[tuple[Row, Sample]]:
        """Every row that fits, with its sample, in index order."""
        request = self._request
        longest = request.max_length or request.pack
        told = partial(self._progress, what)
        for sample in samples(self._blobs, self._shot, progress=told):
            for row in rows_of(sample):
                fit = truncate_row(row, longest, request.over, request.floor)
                self._counts["dropped"] += fit is None
                self._counts["cut"] += fit is not None and fit is not row
                if fit is not None:
                    yield fit, sample

    def _mixed(self) -> tuple[set[Key] | None, dict[str, Any]]:
        """The chosen rows (None: all) and what is told of the mix."""
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
        told = {
            "mix": [_quota(quota) for quota in quotas],
            "scarcest": mix.scarcest,
            "left_out": mix.left_out,
        }
        return chosen, told

    def _write(self, row: Row, sample: Sample) -> None:
        part = _part(row.domain) if self._request.split_by_domain else ""
        domain = self._domains.setdefault(row.domain, Counter())
        domain.update(rows=1, tokens=len(row.input_ids), supervised=row.supervised)
        self._counts["short"] += row.supervised < self._request.floor
        if self._request.pack is None:
            self._writer(part).add(self._format.encode(row, sample), 1, row)
            return
        packer = self._packers.setdefault(part, Packer(self._request.pack))
        for pack in packer.add(row):
            self._writer(part).add(pack.to_json(), len(pack.rows))

    def _writer(self, part: str) -> ShardWriter:
        if part not in self._writers:
            make = self._format.shard if self._request.pack is None else packs
            self._writers[part] = ShardWriter(
                self._target, self._manifest, part, self._format, make, self._request.shard_rows
            )
        return self._writers[part]


class ShardWriter:
    """The shards of one part (a domain, or all), numbered; finished ones are only counted."""

    def __init__(
        self,
        target: Target,
        manifest: Manifest,
        part: str,
        kind: Format,
        make: Callable[[], Shard],
        shard_rows: int,
    ) -> None:
        self._target, self._manifest, self._part, self._kind = target, manifest, part, kind
        self._make, self._shard_rows = make, shard_rows
        self._shard: Shard | None = None
        self.parts: list[Part] = []
        self._open: Part | None = None
        self._lines = 0

    def add(self, row: dict[str, Any], rows: int, single: Row | None = None) -> None:
        """One line of the shard, which stands for so many rows."""
        part = self._open or self._begin()
        if self._shard is not None:
            self._shard.add(row)
        ids = row["input_ids"] if single is None else single.input_ids
        part.tokens += len(ids)
        part.supervised += sum(row["loss_mask"]) if single is None else single.supervised
        part.rows += rows
        self._lines += 1
        if self._lines == self._shard_rows:
            self.close()

    def _begin(self) -> Part:
        name = f"{self._part}{PLAIN}-{len(self.parts):05d}.{self._kind.ending}"
        there = name in self._manifest.shards and self._manifest.check(self._target, name)
        self._shard = None if there else self._make()
        self._open, self._lines = Part(name, 0, 0, 0, 0, ""), 0
        return self._open

    def close(self) -> None:
        """Write the shard that is open, if any, and record it."""
        part, shard = self._open, self._shard
        if part is None:
            return
        if shard is None:
            part = self._manifest.shards[part.name]
        else:
            body = shard.close()
            part.bytes, part.sha256 = len(body), codec.sha256(body)
            self._target.put_new(part.name, body)
            self._manifest.shards[part.name] = part
            self._manifest.save(self._target)
        self.parts.append(part)
        self._open = self._shard = None


def _part(domain: str) -> str:
    """A domain as a folder: letters and digits as they are, no way out of the target."""
    name = quote(domain, safe="") or UNNAMED
    return f"%2E{name[1:]}/" if name.startswith(".") else f"{name}/"


def _quota(quota: Quota) -> dict[str, Any]:
    return {**asdict(quota), "short": quota.short}


def _told(target: Target, manifest: Manifest, *, again: bool = False) -> ExportResult:
    parts = list(manifest.shards.values())
    return ExportResult(
        target=str(target),
        shards=parts,
        rows=sum(part.rows for part in parts),
        tokens=sum(part.tokens for part in parts),
        supervised=sum(part.supervised for part in parts),
        again=again,
        **(manifest.result or {}),
    )
