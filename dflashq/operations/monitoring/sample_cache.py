"""Samples for people to read: one committed batch at a time, read from S3 and cached."""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dflashq.blobs import commits, runs
from dflashq.blobs.s3 import Blobs
from dflashq.core import codec
from dflashq.core.errors import BlobMissingError

BATCHES_KEPT = 3
PREVIEW = 160  # characters of a prompt or an answer in a list
_GENERATIONS = b',"generations":['
_NUMBERS = re.compile(rb'"(spec_accept_length|latency_s)":([0-9.eE+-]+)')


@dataclass(frozen=True, slots=True)
class SamplePreview:
    """One sample: `head` is what a list shows of it, `body` its whole text, compressed."""

    head: dict[str, Any]
    body: bytes

    def text(self) -> dict[str, Any]:
        """The whole sample but its token ids."""
        row: dict[str, Any] = json.loads(codec.decompress(self.body))
        return row


class SampleCache:
    """The samples of the last few batches that were asked for. Safe from many threads."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._kept: OrderedDict[tuple[str, str], list[SamplePreview]] = OrderedDict()
        self._lock = threading.Lock()
        self._reading: dict[tuple[str, str], threading.Lock] = {}

    def previews(self, run: str, batch: str) -> list[SamplePreview]:
        """The samples of a batch in index order, rejected ones with their `reason`.

        Blocks on S3 unless the batch is cached. BlobMissingError for a batch that is not committed,
        ConflictError for a damaged one.
        """
        name = (run, batch)
        with self._lock:
            if name in self._kept:
                self._kept.move_to_end(name)
                return self._kept[name]
            reading = self._reading.setdefault(name, threading.Lock())
        with reading:  # two readers of one batch fetch it once
            with self._lock:
                if name in self._kept:
                    return self._kept[name]
            previews = self._read(run, batch)
            with self._lock:
                self._kept[name] = previews
                self._reading.pop(name, None)
                while len(self._kept) > BATCHES_KEPT:
                    self._kept.popitem(last=False)
            return previews

    def _read(self, run: str, batch: str) -> list[SamplePreview]:
        fingerprint = runs.read_run(self._blobs, run).fingerprint
        ref = commits.read_reference(self._blobs, run, batch, fingerprint)
        if ref is None:
            raise BlobMissingError(
                f"{batch} of run {run} has no samples yet: they are there when the batch is done"
            )
        previews = list(self._previews(ref.key, ref.sha256))
        if ref.rejected_key is not None and ref.rejected_sha256 is not None:
            previews += self._previews(ref.rejected_key, ref.rejected_sha256)
        return sorted(previews, key=lambda preview: preview.head["index"])

    def _previews(self, key: str, sha256: str) -> Iterator[SamplePreview]:
        body = commits.checked_body(self._blobs, key, sha256)
        for line in codec.decompress(body).split(b"\n"):
            if line:
                yield _preview(read_text(line))


def read_text(line: bytes) -> dict[str, Any]:
    """A sample without its token ids, from its JSON line; ids are nine tenths of a line.

    `generations` is cut out before the line is parsed. Its mark is never found in what a model
    wrote, since quotes are escaped inside a JSON string. In its place come `accept_lengths` and
    `latencies` (seconds), one number for each generation. ValueError for a line that is no JSON.
    """
    start = line.find(_GENERATIONS)
    if start < 0:
        row: dict[str, Any] = json.loads(line)
        return row
    rest = line[start:]
    end = rest.rfind(b"]")
    row = json.loads(line[:start] + rest[end + 1 :])
    numbers: dict[str, list[float]] = {"spec_accept_length": [], "latency_s": []}
    for name, value in _NUMBERS.findall(rest[: end + 1]):
        numbers[name.decode()].append(float(value))
    return row | {
        "accept_lengths": numbers["spec_accept_length"],
        "latencies": numbers["latency_s"],
    }


def _preview(row: dict[str, Any]) -> SamplePreview:
    first = next((m["content"] for m in row["messages"] if m["role"] == "user"), "")
    answers = [m["content"] for m in row["messages"] if m["role"] == "assistant"]
    head = {
        "index": row["index"],
        "id": row["id"],
        "domain": row.get("domain", ""),
        "source": row.get("source", ""),
        "verdict": "rejected" if row.get("reason") else "accepted",
        "reason": row.get("reason", ""),
        "detail": row.get("detail", ""),
        "turns": len(answers),
        "usage": row["usage"],
        "prompt": _shortened(first),
        "answer": _shortened(answers[-1] if answers else ""),
    }
    text = json.dumps(row, ensure_ascii=False).encode()
    return SamplePreview(head, codec.compress(text))


def _shortened(text: str) -> str:
    flat = " ".join(text[: PREVIEW * 4].split())
    return flat if len(flat) <= PREVIEW else flat[: PREVIEW - 1] + "…"
