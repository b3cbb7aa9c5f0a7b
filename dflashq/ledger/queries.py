"""Reading the ledger: rows of Redis as records."""

from __future__ import annotations

from typing import Any

from dflashq.core import keys
from dflashq.core.stage_spec import GENERATE, followers
from dflashq.ledger.models import BatchStatus, RunStatus, StageStatus


def runs(client: Any, stage: str = GENERATE.name) -> dict[str, str]:
    """The runs that a stage works on with the queues of its hints, the oldest run first."""
    queues = _text(client.hgetall(keys.stage_runs(stage)))
    pipe = client.pipeline(transaction=False)
    for name in queues:
        pipe.hget(keys.ledger_key(name, "run", stage), "created")
    ages = dict(zip(queues, (float(at or 0) for at in pipe.execute()), strict=True))
    return dict(sorted(queues.items(), key=lambda row: (ages[row[0]], row[0])))


def _leased(
    client: Any, run: str, names: list[bytes], stage: str = GENERATE.name
) -> list[BatchStatus]:
    if not names:
        return []
    pipe = client.pipeline(transaction=False)
    for name in names:
        pipe.hget(keys.ledger_key(run, "leases", stage), f"{name.decode()}:worker")
        pipe.hget(keys.ledger_key(run, "attempts", stage), name)
        pipe.hlen(keys.ledger_key(run, f"kept:{name.decode()}", stage))
    got = pipe.execute()
    return [
        BatchStatus(
            name.decode(),
            "leased",
            worker=(got[3 * i] or b"").decode(),
            attempts=int(got[3 * i + 1] or 0),
            kept=max(0, int(got[3 * i + 2]) - 1),
        )
        for i, name in enumerate(names)
    ]


def run_status(client: Any, run: str) -> RunStatus | None:
    """The counts of a run, or None when the ledger does not know it."""
    status = _counts(client, run, "")
    if status is None or not status.waits_for:
        return status
    # Only now the canary's name is known; where it is belongs to the same moment as the counts.
    return _counts(client, run, status.waits_for)


def _counts(client: Any, run: str, canary: str) -> RunStatus | None:
    pipe = client.pipeline()  # one moment: no batch is missed or met twice between two reads
    pipe.hgetall(keys.ledger_key(run, "run"))
    pipe.zcard(keys.ledger_key(run, "pending"))
    pipe.zrange(keys.ledger_key(run, "leased"), 0, -1)
    pipe.hlen(keys.ledger_key(run, "done"))
    pipe.hgetall(keys.ledger_key(run, "dead"))
    pipe.hgetall(keys.ledger_key(run, "counters"))
    pipe.time()
    pipe.zscore(keys.ledger_key(run, "pending"), canary)
    pipe.hexists(keys.ledger_key(run, "done"), canary)
    raw, pending, leased, done, dead, counters, now, is_pending, is_done = pipe.execute()
    if not raw:
        return None
    row = _text(raw)
    places = {
        "pending": is_pending is not None,
        "leased": canary.encode() in leased,
        "done": is_done,
        "dead": canary.encode() in dead,
    }
    waits = canary and row.get("waits_for") == canary
    return RunStatus(
        name=run,
        state=row["state"],
        reason=row["reason"],
        fingerprint=row["fingerprint"],
        queue=row["queue"],
        prompts=int(row["prompts"]),
        batches=int(row["batches"]),
        created_ms=int(float(row["created"])),
        now_ms=int(now[0]) * 1000 + int(now[1]) // 1000,
        pending=pending,
        leased=_leased(client, run, leased),
        done=done,
        dead=_text(dead),
        kept_bytes=int(row["kept_bytes"]),
        counters={name: int(n) for name, n in _text(counters).items()},
        waits_for=row.get("waits_for", ""),
        claims=int(row.get("fence", 0)),
        canary=next((place for place, is_there in places.items() if is_there), "lost")
        if waits
        else "",
        stages=_stages(client, run),
    )


def _stages(client: Any, run: str) -> dict[str, StageStatus]:
    """The stages behind generate that this run was asked for."""
    pipe = client.pipeline()
    specs = followers()
    for spec in specs:
        pipe.exists(keys.ledger_key(run, "run", spec.name))
        pipe.zcard(keys.ledger_key(run, "pending", spec.name))
        pipe.zcard(keys.ledger_key(run, "leased", spec.name))
        pipe.hlen(keys.ledger_key(run, "done", spec.name))
        pipe.hgetall(keys.ledger_key(run, "dead", spec.name))
    answers = iter(pipe.execute())
    rows = {spec.name: [next(answers) for _ in range(5)] for spec in specs}
    return {
        name: StageStatus(pending=pending, leased=leased, done=done, dead=_text(dead))
        for name, (is_known, pending, leased, done, dead) in rows.items()
        if is_known
    }


def unknown_to(client: Any, run: str, stage: str, upstream: str) -> list[str]:
    """Batches that `upstream` has done and `stage` may not know; none when it has as many.

    The names are read only where the counts differ, since a sweep asks every few seconds. Equal
    counts of different batches, after a ledger was lost, differ again at the next commit.
    """
    pipe = client.pipeline()
    pipe.hlen(keys.ledger_key(run, "done", upstream))
    pipe.zcard(keys.ledger_key(run, "pending", stage))
    pipe.zcard(keys.ledger_key(run, "leased", stage))
    pipe.hlen(keys.ledger_key(run, "done", stage))
    pipe.hlen(keys.ledger_key(run, "dead", stage))
    ready, *known = pipe.execute()
    if ready == sum(known):
        return []
    return [name.decode() for name in client.hkeys(keys.ledger_key(run, "done", upstream))]


def batch_states(client: Any, run: str, stage: str = GENERATE.name) -> list[BatchStatus]:
    """Every batch of a stage of a run, in order."""
    pipe = client.pipeline()  # one moment: no batch is missed or met twice between two reads
    pipe.zrange(keys.ledger_key(run, "pending", stage), 0, -1)
    pipe.zrange(keys.ledger_key(run, "leased", stage), 0, -1)
    pipe.hkeys(keys.ledger_key(run, "done", stage))
    pipe.hgetall(keys.ledger_key(run, "dead", stage))
    pipe.hgetall(keys.ledger_key(run, "attempts", stage))
    pending, leased, done, dead, attempts = pipe.execute()
    tries: dict[str, Any] = _text(attempts)
    rows = _leased(client, run, leased, stage)
    for state, names in (("pending", pending), ("done", done)):
        for name in (raw.decode() for raw in names):
            rows.append(BatchStatus(name, state, attempts=int(tries.get(name, 0))))
    rows += [
        BatchStatus(b, "dead", attempts=int(tries.get(b, 0)), reason=why)
        for b, why in _text(dead).items()
    ]
    return sorted(rows, key=lambda row: keys.parse_batch(row.name))


def _text(row: dict[bytes, bytes]) -> dict[str, str]:
    return {k.decode(): v.decode() for k, v in row.items()}
