"""Validate training data from any source: its defects, counted by kind."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dflashq.core.errors import UsageError
from dflashq.core.generations.special_tokens import SpecialTokens, blank_ids
from dflashq.core.training_data.dataset_checks import KINDS, RowDefects, examine
from dflashq.core.training_data.length_histogram import LengthHistogram
from dflashq.prompts.files import utf8_chunks
from dflashq.prompts.jsonl import MalformedRecord
from dflashq.prompts.records import records

ENDINGS = (".jsonl", ".json", ".gz", ".zst")
EXAMPLES = 3
# The share of rows above which a kind of defect fails the data, where it is not LIMIT.
LIMITS = {"bad_json": 0.0, "bad_ids": 0.0, "repeated": 0.05, "same_length": 0.05}
LIMIT = 0.01
# Among fewer rows, some length is always frequent: it is no defect.
ENOUGH = 100


@dataclass(slots=True)
class DatasetReport:
    """The rows of a data set, and its defects by kind: their number and the first places.

    `shapes` counts the rows by their form, token ids or conversations. Lengths are in `unit`:
    supervised tokens, or characters of the last answer with its thinking.
    """

    limits: dict[str, float]
    files: list[str] = field(default_factory=list)
    rows: int = 0
    shapes: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)
    lengths: LengthHistogram = field(default_factory=LengthHistogram)

    @property
    def unit(self) -> str:
        return "supervised tokens" if self.shapes["tokens"] else "characters"

    def share(self, kind: str) -> float:
        return self.kinds[kind] / self.rows if self.rows else 0.0

    @property
    def failed(self) -> list[str]:
        """The kinds whose share passes its limit."""
        return [kind for kind in KINDS if self.share(kind) > self.limits[kind]]

    def to_json(self) -> dict[str, Any]:
        length, share = self.lengths.most_common()
        return {
            "files": self.files,
            "rows": self.rows,
            "shapes": dict(self.shapes),
            "kinds": {
                kind: {
                    "rows": self.kinds[kind],
                    "share": round(self.share(kind), 4),
                    "limit": self.limits[kind],
                    "examples": self.examples.get(kind, []),
                }
                for kind in KINDS
                if self.kinds[kind]
            },
            "failed": self.failed,
            "unit": self.unit,
            "commonest_length": {"length": length, "share": round(share, 4)},
            "lengths": self.lengths.to_json(),
        }


def validate(
    path: Path,
    *,
    markers: SpecialTokens | None,
    min_supervised: int,
    limits: Mapping[str, float],
    progress: Callable[[int, int], None],
) -> DatasetReport:
    """Examine every row of a file, or of all data files under a folder.

    `markers` are the special ids of the tokenizer; without them, the ends and the think tags of
    token rows are not checked. `limits` replace the limits of single kinds. `progress(done, of)` is
    called after every file. Blocks and changes nothing; holds one row, and a hash for each answer.
    UsageError when there is nothing to read or a limit names no kind, InputError when a file cannot
    be read to its end.
    """
    if unknown := set(limits) - set(KINDS):
        raise UsageError(f"there is no kind {sorted(unknown)[0]!r}: {', '.join(KINDS)}")
    report = DatasetReport({kind: LIMITS.get(kind, LIMIT) for kind in KINDS} | dict(limits))
    files = _files(path)
    answers: set[bytes] = set()
    for number, file in enumerate(files, 1):
        report.files.append(str(file))
        for line, defects in _defects(file, markers, min_supervised):
            _count(report, defects, f"{file}:{line}", answers)
        progress(number, len(files))
    if not report.rows:
        raise UsageError(f"{path} has no rows")
    if report.rows >= ENOUGH:
        length, share = report.lengths.most_common()
        report.kinds["same_length"] = report.lengths.counts[length] if share else 0
    return report


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise UsageError(f"there is no {path}")
    if path.is_file():
        return [path]
    files = [
        file
        for file in sorted(path.rglob("*"))
        if file.is_file() and file.suffix in ENDINGS and not file.name.startswith(".")
    ]
    # The manifest of an export is no data.
    files = [file for file in files if file.name != "export.json"]
    if not files:
        raise UsageError(f"{path} holds no file ending in {', '.join(ENDINGS)}")
    return files


def _defects(
    file: Path, markers: SpecialTokens | None, min_supervised: int
) -> Iterator[tuple[int, RowDefects]]:
    for record in records(str(file), utf8_chunks(file)):
        if isinstance(record.value, MalformedRecord):
            yield record.line, RowDefects(frozenset(["bad_json"]), "unknown")
        else:
            yield record.line, examine(record.value, markers, min_supervised)


def _count(report: DatasetReport, defects: RowDefects, place: str, answers: set[bytes]) -> None:
    """Count one row; `answers` holds the hashes of the answers before it."""
    kinds = set(defects.kinds)
    if defects.answer is not None:
        if defects.answer in answers:
            kinds.add("repeated")
        answers.add(defects.answer)
    report.rows += 1
    report.shapes[defects.shape] += 1
    report.kinds.update(kinds)
    for kind in kinds:
        places = report.examples.setdefault(kind, [])
        if len(places) < EXAMPLES:
            places.append(place)
    if defects.length is not None:
        report.lengths.add(defects.length)


def read_markers(folder: Path) -> SpecialTokens:
    """The special ids of a tokenizer, from the files of its folder, without loading it.

    Blocks. UsageError when a file cannot be read or no end token is named.
    """
    try:
        tokenizer = json.loads((folder / "tokenizer.json").read_bytes())
        vocabulary = {token["content"]: int(token["id"]) for token in tokenizer["added_tokens"]}
        words = tokenizer["model"]["vocab"]
        blanks = blank_ids(words) if isinstance(words, dict) else frozenset()
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise UsageError(f"{folder} has no tokenizer.json that could be read: {exc}") from exc
    ends = {vocabulary.get(_name(_json(folder / "tokenizer_config.json").get("eos_token")))}
    named = _json(folder / "generation_config.json").get("eos_token_id")
    ends |= set(named if isinstance(named, list) else [named])
    ends.discard(None)
    if not ends:
        raise UsageError(f"{folder} names no end token in its tokenizer or generation config")
    return SpecialTokens(
        end_ids=frozenset(int(end) for end in ends if end is not None),
        think_open=vocabulary.get("<think>"),
        think_close=vocabulary.get("</think>"),
        template_ids=frozenset(),
        vocab_size=len(words) + len(vocabulary),
        blank_ids=blanks,
    )


def _json(path: Path) -> dict[str, Any]:
    row: dict[str, Any] = json.loads(path.read_bytes()) if path.is_file() else {}
    return row


def _name(token: object) -> str:
    """A token as text; some configs hold it as an object."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""
