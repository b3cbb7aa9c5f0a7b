"""The commit point of a batch: its completions object, and the rejected object that it names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from dflashq.blobs.s3 import Blobs
from dflashq.core import codec, keys
from dflashq.core.errors import BlobMissingError, ConflictError
from dflashq.core.model import ObjectRef, canonical_json

UNRECORDED = "unrecorded"


@dataclass(frozen=True, slots=True)
class Commit:
    """A committed batch as S3 holds it: its reference, and what became of each prompt.

    `accepted` are the indexes of the accepted prompts. `reasons` maps every rejected index to its
    reason; an index whose rejected row is missing has the reason `unrecorded`.
    """

    ref: ObjectRef
    accepted: tuple[int, ...]
    reasons: dict[int, str]


def write_commit(
    blobs: Blobs,
    run: str,
    batch: str,
    fingerprint: str,
    accepted: bytes,
    rejected: bytes | None,
    counts: dict[str, int],
) -> ObjectRef | None:
    """Upload the rejected rows, then the completions if absent: that second upload is the commit.

    `accepted` and `rejected` are the bytes of the objects (`codec.compress_all`). None when a
    completions object exists, whoever wrote it: `read_commit` says what it holds. Blocks on S3;
    safe to repeat.
    """
    ref = ObjectRef(
        keys.completions_object(run, batch), codec.sha256(accepted), fingerprint, counts
    )
    if rejected is not None:
        digest = codec.sha256(rejected)
        key = keys.rejected_object(run, batch, digest)
        blobs.put_absent(key, rejected, {"sha256": digest, "fingerprint": fingerprint})
        ref = replace(ref, rejected_key=key, rejected_sha256=digest)
    if blobs.put_absent(ref.key, accepted, {"ref": canonical_json(ref.to_json()).decode()}):
        return ref
    return None


def committed(blobs: Blobs, run: str, batch: str) -> bool:
    """Whether the batch has a completions object. Blocks on S3."""
    return blobs.head(keys.completions_object(run, batch)) is not None


def read_reference(blobs: Blobs, run: str, batch: str, fingerprint: str) -> ObjectRef | None:
    """The reference of a committed batch from its metadata alone; None when there is no commit.

    ConflictError when it is not this run's. The bytes are not read: `read_commit` checks them.
    Blocks on S3.
    """
    key = keys.completions_object(run, batch)
    metadata = blobs.head(key)
    return None if metadata is None else _reference(key, metadata, fingerprint)


def read_commit(blobs: Blobs, run: str, batch: str, fingerprint: str, indexes: set[int]) -> Commit:
    """What a committed batch holds, after checks of sha256, fingerprint and index set.

    ConflictError when the object is not this run's work on exactly these indexes, BlobMissingError
    when there is none. Blocks on S3.
    """
    key = keys.completions_object(run, batch)
    blob = blobs.get(key)
    ref = _reference(key, blob.metadata, fingerprint)
    if codec.sha256(blob.body) != ref.sha256:
        raise ConflictError(
            f"{key} is damaged: its sha256 is {codec.sha256(blob.body)[:12]}…, its metadata says "
            f"{ref.sha256[:12]}…"
        )
    accepted = [int(row["index"]) for row in codec.decode_rows(blob.body)]
    reasons = _rejected(blobs, ref)
    _refuse_foreign(key, accepted, reasons, indexes)
    missing = indexes - set(accepted) - set(reasons)
    if missing and reasons:
        raise ConflictError(f"{key} and its rejected object lack the indexes {_some(missing)}")
    reasons |= dict.fromkeys(missing, UNRECORDED)
    return Commit(_recounted(ref, missing), tuple(accepted), reasons)


def _reference(key: str, metadata: dict[str, str], fingerprint: str) -> ObjectRef:
    try:
        ref = ObjectRef.from_json(json.loads(metadata["ref"]))
    except (KeyError, ValueError, TypeError):
        raise ConflictError(f"{key} carries no reference of ours in its metadata") from None
    if ref.fingerprint != fingerprint:
        raise ConflictError(
            f"{key} belongs to another run: fingerprint {ref.fingerprint[:12]}…, "
            f"ours is {fingerprint[:12]}…"
        )
    return ref


def accepted_rows(blobs: Blobs, ref: ObjectRef) -> Iterator[dict[str, Any]]:
    """The sample rows of a commit; BlobMissingError, ConflictError when damaged. Blocks on S3."""
    body = blobs.get(ref.key).body
    if codec.sha256(body) != ref.sha256:
        raise ConflictError(f"{ref.key} is damaged: its sha256 is not the one its metadata names")
    yield from codec.decode_rows(body)


def rejected_rows(blobs: Blobs, ref: ObjectRef) -> Iterator[dict[str, Any]]:
    """The rejected rows that a commit names, if any; errors as in `accepted_rows`. Blocks."""
    if ref.rejected_key is None:
        return
    body = blobs.get(ref.rejected_key).body
    if codec.sha256(body) != ref.rejected_sha256:
        raise ConflictError(f"{ref.rejected_key} is damaged: its sha256 is not the one recorded")
    yield from codec.decode_rows(body)


def checked_body(blobs: Blobs, key: str, sha256: str) -> bytes:
    """The bytes of a committed object whose hash (hex) the reference of its commit names.

    For a reader that decodes them itself. Blocks on S3. BlobMissingError; ConflictError when the
    bytes have another hash.
    """
    body = blobs.get(key).body
    if codec.sha256(body) != sha256:
        raise ConflictError(f"{key} is damaged: its sha256 is not the one recorded")
    return body


def _rejected(blobs: Blobs, ref: ObjectRef) -> dict[int, str]:
    try:
        return {int(row["index"]): str(row["reason"]) for row in rejected_rows(blobs, ref)}
    except BlobMissingError:
        return {}


def _refuse_foreign(
    key: str, accepted: list[int], reasons: dict[int, str], indexes: set[int]
) -> None:
    distinct = set(accepted)
    if len(distinct) != len(accepted):
        raise ConflictError(f"{key} holds an index twice")
    if foreign := (distinct | set(reasons)) - indexes:
        raise ConflictError(f"{key} holds indexes of another batch: {_some(foreign)}")
    if both := distinct & set(reasons):
        raise ConflictError(f"{key} and its rejected object share indexes: {_some(both)}")


def _recounted(ref: ObjectRef, missing: set[int]) -> ObjectRef:
    """The reference with the `missing` indexes counted as rejected for an unrecorded reason."""
    if not missing:
        return ref
    counts = {name: n for name, n in ref.counts.items() if not name.startswith("rejected_")}
    return replace(ref, counts=counts | {f"rejected_{UNRECORDED}": len(missing)})


def _some(indexes: set[int]) -> str:
    first = ", ".join(map(str, sorted(indexes)[:5]))
    return first + (f" and {len(indexes) - 5} more" if len(indexes) > 5 else "")
