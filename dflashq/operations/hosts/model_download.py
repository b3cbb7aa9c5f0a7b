"""Fetches a model whole or not at all: from a folder, from S3, or from a hub.

Every file is written beside its place and then renamed, and its sha256 is recorded: what an
interrupted fetch finished is not fetched again. The folder gets its name when all files are there.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from dflashq.core.errors import DflashqError
from dflashq.embedded.cached_build import Echo, sole_builder
from dflashq.embedded.cpu_engine import MODEL_RECORD
from dflashq.engine.model_folder import check_model

CHUNK = 1 << 22
GB = 1e9
Check = Callable[[Path], str]


class Body(Protocol):
    """The bytes of a file in pieces; b"" at the end. The context manager closes it."""

    def read(self, size: int, /) -> bytes: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> object: ...


class Source(Protocol):
    """Where a model comes from; `name` goes into the record of the model."""

    name: str

    def files(self) -> dict[str, int]:
        """The size of every file in bytes, by relative path."""

    def open(self, path: str) -> Body:
        """One file, by the relative path that `files` gave."""


class LocalSource:
    """A model in a folder, a mounted disk for example."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.name = folder, str(folder)
        if not folder.is_dir():
            raise DflashqError(f"there is no folder {folder}: nothing was copied")

    def files(self) -> dict[str, int]:
        paths = (path for path in sorted(self._folder.rglob("*")) if path.is_file())
        return {
            str(p.relative_to(self._folder)): p.stat().st_size for p in paths if _is_of_model(p)
        }

    def open(self, path: str) -> Body:
        return (self._folder / path).open("rb")


def fetch(
    source: Source, folder: Path, revision: str, echo: Echo, check: Check = check_model
) -> str:
    """Fetch the model to `folder`; returns a sentence. Blocks. Safe to repeat and to interrupt.

    A model that is already there is compared with its record instead. `check` is called on the
    fetched folder. DflashqError says what is wrong; nothing half fetched is ever at `folder`.
    """
    with sole_builder(folder, echo):
        if (folder / MODEL_RECORD).is_file():
            return check_record(folder, echo)
        if folder.exists():
            raise DflashqError(
                f"{folder} is there, without {MODEL_RECORD}: it was not fetched by this command. "
                "Move it away, or give it with --from"
            )
        part = folder.with_name(folder.name + ".part")
        part.mkdir(parents=True, exist_ok=True)
        hashes = _fetch_files(source, part, echo)
        return finish(part, folder, source.name, revision, hashes, check)


def finish(
    part: Path, folder: Path, source: str, revision: str, hashes: dict[str, str], check: Check
) -> str:
    """Check what was fetched, record it, and give the folder its name; the sentence of `check`."""
    sentence = check(part)
    record = {"source": source, "revision": revision, "sha256": hashes}
    _write(part / MODEL_RECORD, record)
    (part / _PROGRESS).unlink(missing_ok=True)
    part.rename(folder)
    return sentence.replace(str(part), str(folder))


def check_record(folder: Path, echo: Echo, only: frozenset[str] | None = None) -> str:
    """Compare every file (or those in `only`) with the sha256 of its record; returns a sentence.

    Blocks while it reads them all. DflashqError names files that are missing or differ.
    """
    record = _record(folder)
    recorded = {k: v for k, v in record["sha256"].items() if only is None or k in only}
    missing = [name for name in recorded if not (folder / name).is_file()]
    present = [name for name in recorded if name not in missing]
    echo(f"{folder.name}: reading {len(present)} files again")
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        hashes = pool.map(lambda name: _sha256(folder / name), present)
        actual = dict(zip(present, hashes, strict=True))
    wrong = missing + [name for name in present if actual[name] != recorded[name]]
    if wrong:
        raise DflashqError(
            f"{folder} is not what was fetched: {', '.join(sorted(wrong)[:5])} lacks or differs "
            f"from its sha256 in {MODEL_RECORD}. Move the folder away and set up again"
        )
    return f"{folder}: {len(recorded)} files as recorded by sha256"


def hashes_of(folder: Path, echo: Echo) -> dict[str, str]:
    """sha256 by relative path of every file that belongs to a model. Blocks, reads them all."""
    hashes = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and _is_of_model(p)):
        echo(f"sha256 of {path.name}")
        hashes[str(path.relative_to(folder))] = _sha256(path)
    return hashes


_PROGRESS = "dflashq-fetching.json"


def _is_of_model(path: Path) -> bool:
    """False for the records of this module and for files of version control or of a cache."""
    hidden = any(part.startswith(".") for part in path.parts[-2:])
    return not hidden and path.name not in (MODEL_RECORD, _PROGRESS)


def _record(folder: Path) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads((folder / MODEL_RECORD).read_bytes())
        if not isinstance(record["sha256"], dict):
            raise TypeError("sha256 is no object")
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise DflashqError(
            f"{folder / MODEL_RECORD} cannot be read ({exc}): move the folder away and set up again"
        ) from None
    return record


def _fetch_files(source: Source, part: Path, echo: Echo) -> dict[str, str]:
    """Fetch all files of the source below `part`; the sha256 of each, by relative path.

    What an earlier try fetched is not fetched again.
    """
    sizes = source.files()
    if not sizes:
        raise DflashqError(f"{source.name} holds no files: nothing was fetched")
    progress: dict[str, str] = {}
    with suppress(OSError, ValueError):
        progress = dict(json.loads((part / _PROGRESS).read_bytes()))
    done, total = 0, sum(sizes.values())
    for path, size in sizes.items():
        target = part / _inside(path)
        complete = target.is_file() and target.stat().st_size == size and path in progress
        if not complete:
            echo(f"{path}: {size / GB:.2f} GB ({done / GB:.1f} of {total / GB:.1f} GB are there)")
            progress[path] = _copy(source.open(path), target, size)
            _write(part / _PROGRESS, progress)
        done += size
    for stray in [p for p in part.rglob("*") if p.is_file() and p.name != _PROGRESS]:
        if str(stray.relative_to(part)) not in sizes:
            stray.unlink()
    for path in sizes:
        # Read again: the process that wrote it may have died before the bytes were on disk.
        if _sha256(part / path) != progress[path]:
            (part / path).unlink()
            raise DflashqError(f"{path} changed on disk after it was fetched: set up again")
    return {path: progress[path] for path in sizes}


def _inside(path: str) -> str:
    if path.startswith("/") or ".." in Path(path).parts:
        raise DflashqError(f"the source names a file outside of its model: {path!r}")
    return path


def _copy(body: Body, target: Path, size: int) -> str:
    """Write beside `target`, sync, then rename; the sha256 of what was written."""
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(target.name + ".fetching")
    digest, written = hashlib.sha256(), 0
    with body, draft.open("wb") as sink:
        for chunk in _chunks(body):
            digest.update(chunk)
            written += sink.write(chunk)
        sink.flush()
        os.fsync(sink.fileno())
    if written != size:
        raise DflashqError(f"{target.name} ended after {written} of {size} bytes: try again")
    draft.replace(target)
    return digest.hexdigest()


def _chunks(body: Body) -> Iterator[bytes]:
    while chunk := body.read(CHUNK):
        yield chunk


def _sha256(path: Path) -> str:
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def _write(path: Path, value: object) -> None:
    draft = path.with_name(path.name + ".fresh")
    draft.write_text(json.dumps(value, indent=1, sort_keys=True))
    draft.replace(path)
