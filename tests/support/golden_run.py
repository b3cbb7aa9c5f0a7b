"""Runs as an earlier version left them: made once, kept in `tests/golden`, loaded by the tests.

`python -m tests.support.golden_run FOLDER` makes the next one with the code of this checkout: real
Redis, S3 and worker, an emulated engine. `FINISHED` is a run with its manifest. `HALF_DONE` was
interrupted by `kill -9`: batches that are committed (one with rejected prompts and a revision that
ran them again), one that is dead, one leased with kept work and strikes, one pending.
"""

from __future__ import annotations

import base64
import json
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import redis

from dflashq.blobs.s3 import Blobs
from dflashq.config import Settings
from dflashq.core import keys
from dflashq.core.model import Guard, RetryStep, RunRecord
from dflashq.ledger import Lease
from dflashq.operations.runs import control
from dflashq.operations.runs.backfill import rerun_rejected
from dflashq.operations.runs.manifest import read_manifest
from tests.support.engine_emulator import emulated_profile
from tests.support.fault_fleet import dial, engine_of, engine_port
from tests.support.fleet import FleetHarness
from tests.support.paths import GOLDEN, ROOT, TINY_MODEL
from tests.support.rehearsal import servers
from tests.support.wait import wait_until

FINISHED, HALF_DONE = "golden-finished", "golden-half-done"
DEAD_BATCH, KEPT_BATCH = keys.batch_name(3), keys.batch_name(4)
CANARY = 4
BATCH_SIZE = 8
PROMPTS = CANARY + 5 * BATCH_SIZE
TRUNCATED = {"truncated": 0.25}
MAX_NEW_TOKENS = 700
OLD_RUN = GOLDEN / "old-run"
_BASE64 = "base64:"
_FOLDER_NAME = "/golden"


def golden_profile(folder: Path, stats: Path | None = None, **options: Any) -> Path:
    """The profile whose engines may go on with the golden runs."""
    usual = {"lengths": "uniform:20:650", "token_ms": 1, "slots": 4, "stats_file": stats}
    return emulated_profile(folder, model_dir=TINY_MODEL, **(usual | options))


def write_prompts(path: Path, count: int) -> Path:
    """Prompts of every kind: with a system message, with tools, of two turns, one far too long."""
    tool = {
        "name": "add",
        "parameters": {"type": "object", "properties": {"a": {"type": "number"}}},
    }
    rows: list[dict[str, Any]] = []
    for number in range(count):
        messages = [{"role": "user", "content": f"How much is {number} plus {number}? ¿Und 加?"}]
        if number % 4 == 1:
            messages.insert(0, {"role": "system", "content": "Answer in one sentence."})
        if number % 5 == 2:
            messages.append({"role": "user", "content": "Are you sure?"})
        row = {
            "id": f"p{number}",
            "domain": ("coding", "general", "math")[number % 3],
            "source": f"golden-{number % 2}",
            "messages": messages,
        }
        if number % 7 == 3:
            row["tools"] = [{"type": "function", "function": tool}]
        rows.append(row)
    rows[count // 3]["messages"] = [{"role": "user", "content": "many words " * 16_000}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


# --- dump and load


def _text(value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return _BASE64 + base64.b64encode(value).decode()
    return _BASE64 + base64.b64encode(value).decode() if text.startswith(_BASE64) else text


def _bytes(text: str) -> bytes:
    if text.startswith(_BASE64):
        return base64.b64decode(text.removeprefix(_BASE64))
    return text.encode()


def _read_key(client: Any, key: bytes) -> dict[str, Any]:
    kind = client.type(key).decode()
    if kind == "hash":
        rows = {_text(k): _text(v) for k, v in sorted(client.hgetall(key).items())}
        return {"type": kind, "value": rows}
    if kind == "zset":
        scores = {_text(k): v for k, v in client.zrange(key, 0, -1, withscores=True)}
        return {"type": kind, "value": scores}
    if kind == "list":
        return {"type": kind, "value": [_text(v) for v in client.lrange(key, 0, -1)]}
    if kind == "set":
        return {"type": kind, "value": sorted(_text(v) for v in client.smembers(key))}
    return {"type": kind, "value": _text(client.get(key))}


def _write_key(client: Any, key: bytes, row: dict[str, Any]) -> None:
    kind, value = row["type"], row["value"]
    if kind == "hash":
        client.hset(key, mapping={_bytes(k): _bytes(v) for k, v in value.items()})
    elif kind == "zset":
        client.zadd(key, {_bytes(k): score for k, score in value.items()})
    elif kind == "list":
        client.rpush(key, *map(_bytes, value))
    elif kind == "set":
        client.sadd(key, *map(_bytes, value))
    else:
        client.set(key, _bytes(value))


def _client(settings: Settings) -> Any:
    return redis.Redis.from_url(settings.broker_url())


def read_redis(settings: Settings) -> dict[str, Any]:
    """Every key of the database but those that expire (locks), as {key: {type, value}}."""
    client = _client(settings)
    rows = {_text(key): _read_key(client, key) for key in client.scan_iter() if client.ttl(key) < 0}
    return dict(sorted(rows.items()))


def clear_redis(settings: Settings) -> None:
    """Lose every key of the database."""
    _client(settings).flushdb()


def dump(settings: Settings, target: Path, hide: Iterable[str]) -> None:
    """Write all keys of Redis but those that expire (locks), and all objects of S3.

    `hide` are the folders of this machine: the dump names `/golden` in their place.
    """
    blobs = Blobs(settings)
    text = json.dumps(read_redis(settings), indent=0, ensure_ascii=False)
    metadata = {}
    for key in blobs.list(""):
        blob = blobs.get(key)
        metadata[key] = blob.metadata
        path = target / "s3" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        body = blob.body
        if key.endswith(".json"):
            body = _hidden(body.decode(), hide).encode()
        path.write_bytes(body)
    (target / "redis.json").write_text(_hidden(text, hide) + "\n")
    (target / "metadata.json").write_text(json.dumps(metadata, indent=0, sort_keys=True) + "\n")


def _hidden(text: str, hide: Iterable[str]) -> str:
    for folder in hide:
        text = text.replace(folder, _FOLDER_NAME)
    return text


def load(settings: Settings, source: Path) -> None:
    """Put a dump into the Redis database and under the S3 prefix of the settings."""
    client, blobs = _client(settings), Blobs(settings)
    for key, row in json.loads((source / "redis.json").read_text()).items():
        _write_key(client, _bytes(key), row)
    for key, metadata in json.loads((source / "metadata.json").read_text()).items():
        blobs.put(key, (source / "s3" / key).read_bytes(), metadata)


# --- the making


def make(settings: Settings, folder: Path) -> None:
    """Leave both runs in Redis and S3. Blocks for about a minute."""
    profile = golden_profile(folder)
    with FleetHarness(settings, profile, folder) as fleet:
        fleet.start("maker")
        fleet.enqueue(FINISHED, write_prompts(folder / "finished.jsonl", 6))
        fleet.wait_finished(FINISHED)
        wait_until(lambda: read_manifest(fleet.blobs, FINISHED) is not None, "a manifest")
        _set_faults(fleet, slow=6.0, **TRUNCATED)
        record = enqueue_half_done(fleet, folder)
        lost = record.batches[3]
        body = fleet.blobs.get(lost.key)
        fleet.blobs.delete(lost.key)
        wait_until(lambda: len(fleet.ledger.done(HALF_DONE)) >= 3, "three batches are committed")
        _set_faults(fleet, slow=40.0)  # the next batch must not end before the run is paused
        wait_until(lambda: bool(fleet.ledger.status(HALF_DONE).dead), "a batch is dead")
        fleet.blobs.put(lost.key, body.body, body.metadata)
        _rerun(fleet)
        _interrupt(fleet)


def _set_faults(fleet: FleetHarness, **faults: object) -> None:
    engine = engine_of(fleet.workers[0])
    assert engine is not None
    dial(engine_port(engine), faults)


def enqueue_half_done(fleet: FleetHarness, folder: Path) -> RunRecord:
    return fleet.enqueue(
        HALF_DONE,
        write_prompts(folder / "half-done.jsonl", PROMPTS),
        batch_size=BATCH_SIZE,
        guard=Guard(canary=CANARY, max_rejected=1.0, min_median_tokens=1),
        ladder=(RetryStep(reasons=("truncated",), max_new_tokens=MAX_NEW_TOKENS + 50),),
        max_new_tokens=MAX_NEW_TOKENS,
    )


def _rerun(fleet: FleetHarness) -> None:
    """Run the truncated prompts again, as revisions of their batches."""
    control.pause(fleet.ledger, fleet.blobs, HALF_DONE, "to look at its rejected prompts")
    wait_until(lambda: not fleet.ledger.status(HALF_DONE).leased, "nothing is leased")
    _set_faults(fleet, truncated=0.0, slow=10.0)
    revisions = rerun_rejected(fleet.ledger, fleet.blobs, fleet.hints, HALF_DONE, "truncated")
    assert revisions.revisions, "no prompt was truncated"
    assert KEPT_BATCH in fleet.ledger.pending(HALF_DONE)
    control.resume(fleet.ledger, fleet.blobs, fleet.hints, HALF_DONE)
    wanted = set(revisions.revisions)
    wait_until(lambda: wanted <= set(fleet.ledger.done(HALF_DONE)), "the revisions are committed")


def _interrupt(fleet: FleetHarness) -> None:
    """Kill the engine, then the worker, while a batch is half done."""
    lease = Lease(HALF_DONE, KEPT_BATCH, "", "", 0)

    def kept() -> int:
        return len(fleet.ledger.kept(lease).generations)

    before = kept()
    wait_until(lambda: kept() >= max(3, before + 1), f"work on {KEPT_BATCH} is kept")
    engine = engine_of(fleet.workers[0])
    assert engine is not None
    engine.kill()
    wait_until(lambda: bool(fleet.ledger.kept(lease).strikes), "strikes are kept")
    fleet.workers[0].kill()
    status = fleet.ledger.status(HALF_DONE)
    assert [batch.name for batch in status.leased] == [KEPT_BATCH]
    assert status.pending == 1
    assert list(status.dead) == [DEAD_BATCH]


@click.command()
@click.argument("target", type=click.Path(path_type=Path))
def main(target: Path) -> None:
    """Make the golden runs and write them to TARGET."""
    with tempfile.TemporaryDirectory(prefix="golden-") as name, servers(Path(name)) as settings:
        folder = Path(name)
        quick = settings.model_copy(
            # One batch at a time, and dead at the first failure: what is left is always the same.
            update={"concurrency": 1, "attempts": 1, "sweep_s": 0.5, "rows_at_once": True}
        )
        make(quick, folder)
        dump(quick, target, [name, sys.prefix, str(ROOT)])


if __name__ == "__main__":
    main()
