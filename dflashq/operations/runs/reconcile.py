"""Reconcile: make the ledger agree with S3, from which all of it can be rebuilt."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from dflashq.blobs import runs
from dflashq.blobs.commits import read_commit, read_reference
from dflashq.blobs.s3 import Blobs
from dflashq.core import codec, keys
from dflashq.core.errors import BlobMissingError, ConflictError
from dflashq.core.model import BatchRecord, ObjectRef, RunRecord, counters
from dflashq.core.states import RunState
from dflashq.ledger import Hints, Ledger
from dflashq.operations.runs.enqueue import canary_of
from dflashq.operations.runs.hinting import hint_pending
from dflashq.operations.runs.manifest import withdraw_manifest

log = logging.getLogger(__name__)


@dataclass(slots=True)
class ReconcileResult:
    """Where the ledger differed from S3, and what was done about it.

    `known`: the ledger had the run. `adopted` batches were done on S3 alone, `forgotten` ones in
    the ledger alone. `added` counts batches that are pending again, `hinted` the hints. `conflicts`
    maps a batch to why its object is not the run's, `quarantined` to where such an object is now.
    """

    run: str
    known: bool
    state: RunState
    adopted: list[str] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    added: int = 0
    hinted: int = 0
    conflicts: dict[str, str] = field(default_factory=dict)
    quarantined: dict[str, str] = field(default_factory=dict)


def reconcile(
    ledger: Ledger,
    blobs: Blobs,
    hints: Hints,
    run: str,
    *,
    quarantine: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> ReconcileResult:
    """Rebuild spec, state, done-set and counters of a run from S3, and hint what is missing.

    With `quarantine`, a commit object that is not this run's is moved aside and its batch runs
    again. `progress(done, of)` is called after every batch. Blocks on S3 and Redis; safe to repeat,
    also under live workers: a leased batch is left to its holder. UnknownRunError when S3 has no
    such run, ConflictError when the ledger has another run of this name.
    """
    record = runs.read_run(blobs, run)
    known = ledger.state(run) != RunState.UNKNOWN
    result = ReconcileResult(run, known, _restore(ledger, blobs, record))
    done, dead = ledger.done(run), ledger.status(run).dead
    batches = list(_batches(blobs, record))
    missing = []
    for number, (batch, superseded) in enumerate(batches, 1):
        ref = _committed(blobs, record, batch, result, quarantine, read_bytes=batch.name in dead)
        name = batch.name
        if ref is None:
            if name in done:
                withdraw_manifest(blobs, run)
                if ledger.forget(run, name, done[name], counters(done[name], superseded)):
                    result.forgotten.append(name)
            elif name not in result.conflicts:
                missing.append(name)
        elif name not in done and ledger.adopt(run, name, ref, counters(ref, superseded)):
            result.adopted.append(name)
        if progress is not None:
            progress(number, len(batches))
    result.added = ledger.add(run, missing)
    if result.quarantined:
        ledger.revive(run, "its foreign commit object was put into quarantine")
    result.hinted = hint_pending(ledger, hints, record.spec.queue)
    return result


def _restore(ledger: Ledger, blobs: Blobs, record: RunRecord) -> RunState:
    """Make the run known with its state; returns the state that now holds."""
    on_record = ledger.register(
        run=record.name,
        fingerprint=record.fingerprint,
        queue=record.spec.queue,
        prompts=record.prompts,
        batches=len(record.batches),
        canary=canary_of(record),
    )
    if on_record != record.fingerprint:
        raise ConflictError(
            f"the ledger knows another run named {record.name!r} (fingerprint {on_record[:12]}…) "
            f"than S3 does ({record.fingerprint[:12]}…): nothing was changed. One of the two is "
            "from elsewhere: check DFLASHQ_REDIS_URL and DFLASHQ_S3_BUCKET."
        )
    state, reason = runs.read_state(blobs, record.name) or (RunState.ACTIVE, "")
    return ledger.set_state(record.name, state, reason)


def _batches(blobs: Blobs, record: RunRecord) -> Iterator[tuple[BatchRecord, dict[str, int]]]:
    """Every batch with what it supersedes, the revisions behind the batches."""
    for batch in record.batches:
        yield batch, {}
    for revision in runs.revisions(blobs, record.name):
        yield revision.batch, revision.supersedes


def _committed(
    blobs: Blobs,
    record: RunRecord,
    batch: BatchRecord,
    result: ReconcileResult,
    quarantine: bool,
    *,
    read_bytes: bool,
) -> ObjectRef | None:
    """The reference of a batch's commit; None when this run has not committed it.

    `read_bytes`: check the object's bytes too, since the batch may have died because of them.
    """
    try:
        ref = read_reference(blobs, record.name, batch.name, record.fingerprint)
        lost = ref is not None and ref.rejected_key and blobs.head(ref.rejected_key) is None
        if ref is not None and (lost or read_bytes):
            # The indexes whose rejected rows are lost follow from the accepted ones.
            indexes = {prompt.index for prompt in runs.read_prompts(blobs, batch)}
            return read_commit(blobs, record.name, batch.name, record.fingerprint, indexes).ref
    except BlobMissingError:
        return None
    except ConflictError as exc:
        result.conflicts[batch.name] = str(exc)
        if quarantine:
            withdraw_manifest(blobs, record.name)
            result.quarantined[batch.name] = _move_aside(blobs, record.name, batch.name)
            del result.conflicts[batch.name]
        return None
    return ref


def _move_aside(blobs: Blobs, run: str, batch: str) -> str:
    """Copy a commit object to another key, then delete it; returns that key."""
    key = keys.completions_object(run, batch)
    blob = blobs.get(key)
    target = keys.quarantine_object(run, batch, codec.sha256(blob.body))
    blobs.put(target, blob.body, blob.metadata)
    blobs.delete(key)
    log.warning("quarantined: %s is now %s", key, target)
    return target
