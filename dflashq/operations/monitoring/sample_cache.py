"""Samples to read: one committed batch at a time straight from S3, a few of them kept at hand."""

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
from dflashq.core.errors import BlobMissingError, ConflictError

BATCHES_KEPT = 3
PREVIEW = 160
_GENERATIONS = b',"generations":['
_NUMBERS = re.compile(rb'"(spec_accept_length|latency_s)":([0-9.eE+-]+)')


@dataclass(frozen=True, slots=True)
class SamplePreview:
    """One sample: what a list shows of it, and its whole text, compressed."""

    head: dict[str, Any]
    body: bytes

    def text(self) -> dict[str, Any]:
        """Messages and all; the token ids are left out."""
        row: dict[str, Any] = json.loads(codec.decompress(self.body))
        return row


class SampleCache:
    """Samples of committed batches, safe from many threads. Blocks on S3.

    BlobMissingError for a batch that is not committed, ConflictError for a damaged one.
    """

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._kept: OrderedDict[tuple[str, str], list[SamplePreview]] = OrderedDict()
        self._lock = threading.Lock()
        self._reading: dict[tuple[str, str], threading.Lock] = {}

    def sheets(self, run: str, batch: str) -> list[SamplePreview]:
        """The samples of a batch in index order, rejected ones with their `reason`."""
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
            found = self._read(run, batch)
            with self._lock:
                self._kept[name] = found
                self._reading.pop(name, None)
                while len(self._kept) > BATCHES_KEPT:
                    self._kept.popitem(last=False)
            return found

    def _read(self, run: str, batch: str) -> list[SamplePreview]:
        fingerprint = runs.read_run(self._blobs, run).fingerprint
        ref = commits.read_reference(self._blobs, run, batch, fingerprint)
        if ref is None:
            raise BlobMissingError(
                f"{batch} of run {run} has no samples yet: they are there when the batch is done"
            )
        found = list(self._sheets(ref.key, ref.sha256))
        if ref.rejected_key is not None and ref.rejected_sha256 is not None:
            found += self._sheets(ref.rejected_key, ref.rejected_sha256)
        return sorted(found, key=lambda preview: preview.head["index"])

    def _sheets(self, key: str, sha256: str) -> Iterator[SamplePreview]:
        body = self._blobs.get(key).body
        if codec.sha256(body) != sha256:
            raise ConflictError(f"{key} is damaged: its sha256 is not the one recorded")
        for line in codec.decompress(body).split(b"\n"):
            if line:
                yield _sheet(read_text(line))


def read_text(line: bytes) -> dict[str, Any]:
    """A sample without its token ids, which are nine tenths of a line and no text.

    Inside a JSON string quotes are escaped, so the mark is never found in what a model wrote.
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


def _sheet(row: dict[str, Any]) -> SamplePreview:
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
        "prompt": _preview(first),
        "answer": _preview(answers[-1] if answers else ""),
    }
    text = json.dumps(row, ensure_ascii=False).encode()
    return SamplePreview(head, codec.compress(text))


def _preview(text: str) -> str:
    flat = " ".join(text[: PREVIEW * 4].split())
    return flat if len(flat) <= PREVIEW else flat[: PREVIEW - 1] + "…"
