"""What a worker and a monitor need of their host's limits; a host that grants less is refused.

The sums are of the most that can be open at once, not of what is usual: a process that runs out in
the middle of a run loses more than one that refuses to start.
"""

from __future__ import annotations

import logging
import os

from dflashq.config import Settings
from dflashq.core.errors import ConfigError
from dflashq.engine.profiles import Profile, Range
from dflashq.system import limits
from dflashq.system.limits import Need, Part

log = logging.getLogger(__name__)

RUNNING_FLAG = "--max-running-requests"
RUNNING_KEYS = (
    "internal_states.0.effective_max_running_requests_per_dp",
    "max_running_requests",
)
S3_POOL = 32  # connections that the S3 client keeps open (`max_pool_connections`)
BACKGROUND = 16  # threads of a worker beside those of its batches
WEB_CONNECTIONS = 100  # connections that waitress accepts at once


def known_running(profile: Profile) -> int | None:
    """Requests that the engine runs at once, by its profile; None when only the engine knows."""
    for flag in profile.launch.flags:
        if flag.flag == RUNNING_FLAG and type(flag.value) is int:
            return flag.value
    for key in RUNNING_KEYS:
        wanted = profile.expect.get(key)
        wanted = wanted.min if isinstance(wanted, Range) else wanted
        if type(wanted) is int:
            return wanted
    return profile.concurrency.limit


def worker_need(settings: Settings, profile: Profile, running: int | None = None) -> Need:
    """What one worker needs. `running` is the engine's own limit, once it is known."""
    running = running if running is not None else known_running(profile)
    in_flight = 0 if running is None else profile.concurrency.in_flight(running)
    batches = settings.concurrency
    redis = (
        # A thread holds at most one connection in each of the two clients that it may use.
        Part(2 * (batches + BACKGROUND), "connections to Redis"),
        # Consumer, remote control, heartbeat, events, and the hints that are sent.
        Part(12, "connections of Celery"),
    )
    return Need(
        descriptors=(
            Part(in_flight, "generations in flight"),
            # Each abort has a connection of its own, and a drain may abort all requests at once.
            Part(in_flight, "aborts of them"),
            *redis,
            Part(S3_POOL, "connections to S3"),
            # Logs, rejected prompts by run, locks, the engine's pipes, libraries, scrapes.
            Part(48, "files, pipes and scrapes"),
            # Tokenizer, certificates and the like, which are open for a moment.
            Part(32, "in reserve"),
        ),
        threads=(
            Part(2 * batches, "batches"),
            Part(BACKGROUND, "background threads"),
            # The probe of S3 races 16; numerical libraries and the tokenizer have one a core.
            Part(16 + 2 * (os.cpu_count() or 1), "threads of libraries"),
            Part(0 if profile.launch.kind == "external" else 128, "threads of the engine"),
        ),
        # All to one destination; a closed port stays taken for a minute.
        ports=(Part(4 * in_flight + 256, "connections, closed ones included"),),
    )


def monitor_need(threads: int) -> Need:
    """What a monitor needs that answers requests with so many `threads`."""
    return Need(
        descriptors=(
            Part(WEB_CONNECTIONS, "readers"),
            # One client each for the ledger, the series and the hints.
            Part(3 * (threads + 2), "connections to Redis"),
            Part(S3_POOL, "connections to S3"),
            Part(64, "files, and in reserve"),
        ),
        threads=(Part(threads + 32, "threads for requests, background and libraries"),),
    )


def times(need: Need, count: int) -> Need:
    """The need of `count` such processes on one host: threads add up, open files do not."""
    return Need(need.descriptors, tuple(Part(p.count * count, p.what) for p in need.threads))


def ensure(need: Need, who: str) -> None:
    """Raise the limit on open files as far as needed and granted, then `check`. Safe to repeat.

    `who` needs it, for the sentence of the ConfigError.
    """
    new = limits.raise_descriptors(limits.total(need.descriptors))
    if new is not None:
        log.info("the limit on open files was raised: limit=%d", new)
    check(need, who)


def check(need: Need, who: str) -> str:
    """A sentence on what is granted and needed; ConfigError where too little is granted."""
    grant = limits.granted()
    missing = limits.lacks(need, grant)
    if missing:
        raise ConfigError(
            f"this host's limits are too low for {who}, so it does not start: " + ". ".join(missing)
        )
    rows = (
        ("open files", need.descriptors, grant.descriptors_at_most),
        ("threads", need.threads, grant.threads),
        ("local ports", need.ports, grant.ports),
    )
    return ", ".join(
        f"{'unlimited' if granted == limits.UNLIMITED else f'{granted:,}'} {what} "
        f"({limits.total(parts):,} needed)"
        for what, parts, granted in rows
        if parts
    )
