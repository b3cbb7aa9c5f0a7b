"""Validate: what is wrong with training data that others made, counted by kind."""

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
# A share of rows above which a kind fails the data; what is not here: 1 %.
LIMITS = {"bad_json": 0.0, "bad_ids": 0.0, "repeated": 0.05, "same_length": 0.05}
LIMIT = 0.01
# Among few rows some length is always common.
ENOUGH = 100


@dataclass(slots=True)
class DatasetReport:
    """What was found: rows, and by kind their count and the first places.

    Lengths are in `unit`: supervised tokens, or characters of the last answer with its thinking.
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
    """Examine every row of a file, or of all data files under a folder. Blocks; reads only.

    Holds one row and 8 bytes for each answer. UsageError when there is nothing to read or a limit
    names no kind, InputError when a file cannot be read to its end.
    """
    if unknown := set(limits) - set(KINDS):
        raise UsageError(f"there is no kind {sorted(unknown)[0]!r}: {', '.join(KINDS)}")
    found = DatasetReport({kind: LIMITS.get(kind, LIMIT) for kind in KINDS} | dict(limits))
    files = _files(path)
    seen: set[bytes] = set()
    for number, file in enumerate(files, 1):
        found.files.append(str(file))
        for line, finding in _findings(file, markers, min_supervised):
            _count(found, finding, f"{file}:{line}", seen)
        progress(number, len(files))
    if not found.rows:
        raise UsageError(f"{path} has no rows")
    if found.rows >= ENOUGH:
        length, share = found.lengths.most_common()
        found.kinds["same_length"] = found.lengths.counts[length] if share else 0
    return found


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise UsageError(f"there is no {path}")
    if path.is_file():
        return [path]
    files = [
        one
        for one in sorted(path.rglob("*"))
        if one.is_file() and one.suffix in ENDINGS and not one.name.startswith(".")
    ]
    # An export's own record is no data.
    files = [one for one in files if one.name != "export.json"]
    if not files:
        raise UsageError(f"{path} holds no file ending in {', '.join(ENDINGS)}")
    return files


def _findings(
    file: Path, markers: SpecialTokens | None, min_supervised: int
) -> Iterator[tuple[int, RowDefects]]:
    for record in records(str(file), utf8_chunks(file)):
        if isinstance(record.value, MalformedRecord):
            yield record.line, RowDefects(frozenset(["bad_json"]), "unknown")
        else:
            yield record.line, examine(record.value, markers, min_supervised)


def _count(found: DatasetReport, finding: RowDefects, place: str, seen: set[bytes]) -> None:
    kinds = set(finding.kinds)
    if finding.answer is not None:
        if finding.answer in seen:
            kinds.add("repeated")
        seen.add(finding.answer)
    found.rows += 1
    found.shapes[finding.shape] += 1
    found.kinds.update(kinds)
    for kind in kinds:
        places = found.examples.setdefault(kind, [])
        if len(places) < EXAMPLES:
            places.append(place)
    if finding.length is not None:
        found.lengths.add(finding.length)


def read_markers(folder: Path) -> SpecialTokens:
    """The special ids of a tokenizer folder, from its files alone. UsageError when it has none."""
    try:
        tokenizer = json.loads((folder / "tokenizer.json").read_bytes())
        vocabulary = {one["content"]: int(one["id"]) for one in tokenizer["added_tokens"]}
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
