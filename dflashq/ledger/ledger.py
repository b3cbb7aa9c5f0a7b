"""The verbs of the ledger, each one Lua script; every one blocks on Redis and is safe to repeat."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

import redis

from dflashq.config import Settings
from dflashq.core import keys
from dflashq.core.errors import LeaseLostError, LedgerError, UnknownRunError
from dflashq.core.model import ObjectRef
from dflashq.core.stage_spec import GENERATE, StageSpec
from dflashq.core.worker_identity import WorkerBoot
from dflashq.ledger import queries, scripts, server
from dflashq.ledger.connection import address, connect, out_of_memory, translated
from dflashq.ledger.kept_codec import KeptEntry, decode_kept
from dflashq.ledger.locks import HousekeepingLocks
from dflashq.ledger.models import BatchStatus, Claim, Kept, Lease, RunStatus
from dflashq.ledger.outage import Outage, outage_of
from dflashq.ledger.refusal import Need
from dflashq.ledger.workers import WorkerRegistry


def _reference(ref: ObjectRef) -> str:
    return json.dumps(ref.to_json(), sort_keys=True)


def _flat(counts: Mapping[str, int]) -> list[str | int]:
    return [part for pair in counts.items() for part in pair]


class Ledger(WorkerRegistry, HousekeepingLocks):
    """One client of the ledger, safe from many threads.

    Every method may raise LedgerUnreachableError (not answered or refused for now: repeat it) or
    LedgerError (Redis answered, but wrongly).
    """

    def __init__(self, settings: Settings) -> None:
        self._settings, self._redis = settings, connect(settings)
        self._address = address(settings)
        self._budget = settings.keep_budget_mb * 2**20
        self._fsync = settings.keep_fsync
        self._attempts = settings.attempts
        self._lease_ms = int(settings.lease_ttl_s * 1000)

    # --- a run and its batches

    def register(
        self,
        run: str,
        fingerprint: str,
        queue: str,
        prompts: int,
        batches: int,
        canary: str = "",
        *,
        stage: str = GENERATE.name,
    ) -> str:
        """Make a run known; returns the fingerprint on record, another one if the name is taken.

        All other batches wait for the `canary` batch until `release_canary`. For a `stage` behind
        generate, it is what asks for that stage.
        """
        args = (fingerprint, queue, prompts, batches, canary)
        on_record = self._call("register", run, *args, stage=stage).decode()
        if on_record == fingerprint:
            with self._translated(f"registering run {run}"):
                self._redis.hset(keys.stage_runs(stage), run, queue)
        return str(on_record)

    def add(self, run: str, batches: Iterable[str], stage: str = GENERATE.name) -> int:
        """Put batches in the outbox (pending); returns how many are new."""
        names = list(batches)
        parts = (names[i : i + 1000] for i in range(0, len(names), 1000))
        return sum(int(self._call("add", run, *part, stage=stage)) for part in parts)

    def add_ready(self, run: str, spec: StageSpec) -> int:
        """Put what the stage's upstream has done in its outbox; returns how many are new.

        Blocks; safe to repeat. Nothing without an upstream: `enqueue` adds those batches.
        """
        if spec.upstream is None:
            return 0
        with self._translated(f"comparing stage {spec.name} of run {run} with its upstream"):
            ready = queries.unknown_to(self._redis, run, spec.name, spec.upstream)
        return self.add(run, ready, spec.name)

    def set_state(self, run: str, state: str, reason: str) -> str:
        """active, paused or cancelled (for good); returns the state that now holds."""
        now = str(self._call("state", run, state, reason).decode())
        if now == "unknown":
            raise UnknownRunError(
                f"no run named {run!r} is known to the ledger; `dflashq status` lists the runs"
            )
        return now

    def release_canary(self, run: str, tolerated: float | None = None) -> None:
        """Let the other batches go; `tolerated` is the share of rejections accepted by a person."""
        self._call("release_canary", run, "" if tolerated is None else repr(tolerated))

    def tolerated(self, run: str) -> float:
        """The share of rejected prompts that somebody accepted for this run; 0 when nobody did."""
        with self._translated(f"reading the tolerance of run {run}"):
            value = self._redis.hget(keys.ledger_key(run, "run"), "tolerated")
        return float(value) if value else 0.0

    def pause_at_canary(self, run: str, seen: str, reason: str) -> bool:
        """Pause an active run whose canary is still where it was `seen`: done, dead or lost.

        False: nothing was paused, since somebody resumed, accepted or revived it meanwhile.
        """
        return bool(self._call("pause_at_canary", run, seen, reason))

    def revive(
        self, run: str, reason: str, batches: Iterable[str] = (), stage: str = GENERATE.name
    ) -> list[str]:
        """Dead batches (all, or those named) are pending again with all their attempts.

        Returns the names of those that were dead.
        """
        return [b.decode() for b in self._call("revive", run, reason, *batches, stage=stage)]

    # --- a lease

    def claim(
        self,
        run: str,
        batch: str,
        worker: str,
        ttl_s: float,
        *,
        only: bool = False,
        avoid: Iterable[str] = (),
        boot: str = "",
        stage: str = GENERATE.name,
    ) -> Claim:
        """Lease `batch`, or (unless `only`) the run's oldest pending one; none of those to `avoid`.

        `boot` is the start of `worker` that will hold it.

        The nonce makes it safe to send again when a reply is lost, which the client does by
        itself. A lease whose reply never came is nobody's and runs out.
        """
        nonce = secrets.token_hex(8)
        args = (batch, worker, nonce, int(ttl_s * 1000), int(only), boot, *avoid)
        answer = self._call("claim", run, *args, stage=stage)
        if answer[0] == b"none":
            return Claim(None, answer[1].decode())
        name, fence, attempts = answer[1].decode(), answer[2].decode(), int(answer[3])
        return Claim(Lease(run, name, fence, worker, attempts, stage))

    def begin(self, lease: Lease) -> int:
        """Count this attempt; returns its number. LeaseLostError when fenced."""
        number = int(self._call_lease("begin", lease))
        if not number:
            raise self._lost(lease)
        return number

    def renew(self, run: str, leases: list[Lease], ttl_s: float) -> tuple[str, list[bool]]:
        """Extend leases of one stage of a run; returns its state and whether each is still held."""
        args = [part for lease in leases for part in (lease.batch, lease.fence)]
        stage = leases[0].stage if leases else GENERATE.name
        state, *held = self._call("renew", run, int(ttl_s * 1000), *args, stage=stage)
        return state.decode(), [bool(h) for h in held]

    def keep(self, lease: Lease, entries: list[KeptEntry]) -> bool:
        """Store finished work of an unfinished batch; on disk when this returns True.

        False: the budget (or Redis) is full and nothing of this call was kept.
        LeaseLostError when fenced.
        """
        args = [part for entry in entries for part in entry]
        try:
            answer = self._call_lease("keep", lease, self._budget, *args, fsync=self._fsync)
        except LedgerError as exc:
            if out_of_memory(exc):
                return False
            raise
        if answer == b"fenced":
            raise self._lost(lease)
        return bool(answer == b"kept")

    def kept(self, lease: Lease) -> Kept:
        """What earlier attempts on this batch left, as generate keeps it."""
        return decode_kept(self._kept_hash(lease))

    def kept_entries(self, lease: Lease) -> dict[str, bytes]:
        """What earlier attempts left, as it is stored: for a stage that keeps what it wants."""
        fields = self._kept_hash(lease)
        return {name.decode(): body for name, body in fields.items() if name != b"bytes"}

    def _kept_hash(self, lease: Lease) -> dict[bytes, bytes]:
        key = keys.ledger_key(lease.run, f"kept:{lease.batch}", lease.stage)
        with self._translated(f"reading the kept work of {lease.run}/{lease.batch}"):
            return dict(self._redis.hgetall(key))

    def complete(self, lease: Lease, ref: ObjectRef, counts: Mapping[str, int]) -> str:
        """The ack, after the upload; 'done' or 'already'. LeaseLostError when fenced.

        A 'conflict' (the done-set names another object) is a LedgerError: it cannot happen while
        objects are put only if absent.
        """
        answer = self._call_lease("complete", lease, _reference(ref), *_flat(counts)).decode()
        if answer == "fenced":
            raise self._lost(lease)
        if answer == "conflict":
            raise LedgerError(
                f"{lease.run}/{lease.batch} is done with another object than {ref.key} "
                f"(sha256 {ref.sha256[:12]}): run `dflashq verify {lease.run}`"
            )
        return str(answer)

    def release(self, lease: Lease, reason: str) -> bool:
        """Hand a batch back without spending an attempt; False when it was not ours any more."""
        return bool(self._call_lease("release", lease, reason))

    def fail(self, lease: Lease, reason: str) -> str:
        """This attempt failed: 'pending' again, 'dead' after the last, or 'fenced'."""
        return str(self._call_lease("fail", lease, reason, self._attempts).decode())

    def kill(self, lease: Lease, reason: str) -> bool:
        """The batch is dead at once, with its reason; False when fenced."""
        return bool(self._call_lease("kill", lease, reason))

    # --- what S3 says

    def adopt(
        self,
        run: str,
        batch: str,
        ref: ObjectRef,
        counts: Mapping[str, int],
        stage: str = GENERATE.name,
    ) -> bool:
        """Enter a committed object that the done-set forgot; for reconcile.

        False: it was there already, or the batch is leased and its holder adopts the object.
        """
        args = (batch, _reference(ref), *_flat(counts))
        return bool(self._call("adopt", run, *args, stage=stage))

    def forget(
        self,
        run: str,
        batch: str,
        ref: ObjectRef,
        counts: Mapping[str, int],
        stage: str = GENERATE.name,
    ) -> bool:
        """Take back a batch whose object is gone from S3: it is pending again."""
        args = (batch, _reference(ref), *_flat(counts))
        return bool(self._call("forget", run, *args, stage=stage))

    # --- housekeeping

    def disown(self, run: str, boot: WorkerBoot) -> list[str]:
        """Give back what earlier boots of this name on this host let run out; the batches.

        A lease that has not run out is never touched: its holder may live.
        """
        return [b.decode() for b in self._call("disown", run, boot.name, boot.text, self._attempts)]

    def expire(self, run: str, stage: str = GENERATE.name) -> list[tuple[str, str]]:
        """Take back leases past their end; returns (batch, 'pending' or 'dead') for each."""
        rows = self._call("expire", run, self._attempts, stage=stage)
        return [(batch.decode(), outcome.decode()) for batch, outcome in rows]

    def memory(self) -> tuple[int, int]:
        """(used, maximum) bytes of Redis; maximum 0 when it is not limited."""
        with self._translated("reading its memory"):
            row = self._redis.info("memory")
        return int(row["used_memory"]), int(row.get("maxmemory", 0))

    # --- what is known

    def runs(self, stage: str = GENERATE.name) -> dict[str, str]:
        """The runs that a stage works on, each with the queue of its hints; the oldest run first.

        Generate works on every run.
        """
        with self._translated("listing the runs"):
            return queries.runs(self._redis, stage)

    def state(self, run: str, stage: str = GENERATE.name) -> str:
        """active, paused, cancelled or unknown."""
        with self._translated(f"reading the state of run {run}"):
            value = self._redis.hget(keys.ledger_key(run, "run", stage), "state")
        return value.decode() if value else "unknown"

    def pending(self, run: str, limit: int = -1, stage: str = GENERATE.name) -> list[str]:
        """The pending batches, oldest first: all, or `limit` of them at most."""
        with self._translated(f"reading the pending batches of {run}"):
            key = keys.ledger_key(run, "pending", stage)
            names = self._redis.zrange(key, 0, limit - 1 if limit > 0 else -1)
        return [name.decode() for name in names]

    def waits_for(self, run: str, stage: str = GENERATE.name) -> str:
        """The canary batch that the others wait for; empty once it has passed."""
        with self._translated(f"reading the canary of run {run}"):
            value = self._redis.hget(keys.ledger_key(run, "run", stage), "waits_for")
        return value.decode() if value else ""

    def claimable(self, run: str, stage: str = GENERATE.name) -> list[str]:
        """The pending batches that may be claimed now: all, the canary alone, or none (paused)."""
        if self.state(run, stage) != "active":
            return []
        pending, canary = self.pending(run, stage=stage), self.waits_for(run, stage)
        return [batch for batch in pending if batch == canary] if canary else pending

    def done(self, run: str, stage: str = GENERATE.name) -> dict[str, ObjectRef]:
        """The done-set."""
        with self._translated(f"reading the done-set of {run}"):
            rows = self._redis.hgetall(keys.ledger_key(run, "done", stage))
        return {b.decode(): ObjectRef.from_json(json.loads(r)) for b, r in rows.items()}

    def story(self, run: str, batch: str, stage: str = GENERATE.name) -> list[dict[str, Any]]:
        """What happened to a batch, oldest first: {at (ms), what}."""
        with self._translated(f"reading the story of {run}/{batch}"):
            row = self._redis.hget(keys.ledger_key(run, "story", stage), batch)
        return list(json.loads(row)) if row else []

    def status(self, run: str) -> RunStatus:
        """The counts of a run at one moment; UnknownRunError when there is none."""
        with self._translated(f"reading the status of run {run}"):
            status = queries.run_status(self._redis, run)
        if status is None:
            raise UnknownRunError(
                f"no run named {run!r} is known to the ledger; `dflashq status` lists the runs"
            )
        return status

    def batch_states(self, run: str, stage: str = GENERATE.name) -> list[BatchStatus]:
        """Every batch that the ledger knows, in order."""
        with self._translated(f"reading the batches of run {run}"):
            return queries.batch_states(self._redis, run, stage)

    def now_s(self) -> float:
        """The server's clock, the only one that leases know: seconds since 1970."""
        seconds, micros = self._time()
        return seconds + micros / 1e6

    def check(self) -> str:
        """Write and read for real; returns the server's version. For `doctor` and boot."""
        return server.check(self._redis, self._settings)

    def refusal(self) -> str:
        """What Redis says to a write now; empty when it takes it, or may not be asked. Blocks."""
        return server.refusal(self._redis, self._settings)

    @property
    def outage(self) -> Outage:
        """Whether Redis refuses something or is away, as this process met it. Does not block."""
        return outage_of(self._address)

    # --- inside

    def _call(
        self, name: str, run: str, *args: Any, stage: str = GENERATE.name, fsync: bool = False
    ) -> Any:
        """One script on the keys of one stage of a run."""
        with self._translated(f"{name} on run {run}", scripts.need(name)):
            return self._loaded(name, scripts.run_keys(run, stage), args, fsync)

    def _call_lease(self, name: str, lease: Lease, *args: Any, fsync: bool = False) -> Any:
        """One script on the batch of a lease, which the fence must still hold."""
        args = (lease.batch, lease.fence, *args)
        return self._call(name, lease.run, *args, stage=lease.stage, fsync=fsync)

    def _call_on(self, keyset: tuple[str, ...], name: str, about: str, *args: Any) -> Any:
        """One script on keys that belong to no run; `about` is its first argument."""
        with self._translated(f"{name} of {about}", scripts.need(name)):
            return self._loaded(name, keyset, (about, *args), fsync=False)

    def _loaded(self, name: str, keyset: tuple[str, ...], args: Any, fsync: bool) -> Any:
        """The answer of a script; loads it where Redis does not know it."""
        try:
            return self._evaluate(name, keyset, args, fsync)
        except redis.exceptions.NoScriptError:
            self._redis.script_load(scripts.source(name))
            return self._evaluate(name, keyset, args, fsync)

    def _evaluate(
        self, name: str, keyset: tuple[str, ...], args: tuple[Any, ...], fsync: bool
    ) -> Any:
        if not fsync:
            return self._redis.evalsha(scripts.sha1(name), len(keyset), *keyset, *args)
        pipe = self._redis.pipeline(transaction=False)
        pipe.evalsha(scripts.sha1(name), len(keyset), *keyset, *args)
        pipe.execute_command("WAITAOF", 1, 0, 9000)
        answer, synced = pipe.execute()
        if not synced[0]:
            raise redis.TimeoutError("the write was not on disk after 9 s")
        return answer

    def _time(self) -> tuple[int, int]:
        with self._translated("reading the time"):
            seconds, micros = self._redis.time()
        return int(seconds), int(micros)

    def _translated(self, doing: str, need: Need = Need.ANSWER) -> Any:
        return translated(self._address, doing, need)

    @staticmethod
    def _lost(lease: Lease) -> LeaseLostError:
        return LeaseLostError(
            f"{lease.run}/{lease.batch}: the lease {lease.fence} is not ours any more; whoever "
            "holds it now starts from what was kept"
        )
