"""What the operating system grants this process: descriptors, threads, ports."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

UNLIMITED = 2**62
# When the soft limit must be raised, it is raised to this, so that later needs are met as well.
COMFORTABLE = 65536
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Part:
    """How many of a resource are needed for one purpose."""

    count: int
    what: str


@dataclass(frozen=True, slots=True)
class Need:
    """What a process needs of its host; the parts of each resource add up."""

    descriptors: tuple[Part, ...] = ()
    threads: tuple[Part, ...] = ()
    ports: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True)
class Grant:
    """What this host grants to this process.

    `descriptors` is the soft limit, `descriptors_at_most` the hard one. `threads` may still be
    started; `threads_by` names the limit that says so. UNLIMITED where there is no limit.
    """

    descriptors: int
    descriptors_at_most: int
    threads: int
    threads_by: str
    ports: int


def exhausted(exc: BaseException) -> bool:
    """Whether `exc`, or its cause, says that the host ran out of descriptors or memory.

    The caller is not to blame: another try may succeed, here or on another host.
    """
    cause: BaseException | None = exc
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _EXHAUSTED:
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def total(parts: Iterable[Part]) -> int:
    """The sum of the parts."""
    return sum(part.count for part in parts)


def granted() -> Grant:
    """Read the limits from the kernel. Does not block; what cannot be read counts as unlimited."""
    soft, hard = (_count(value) for value in resource.getrlimit(resource.RLIMIT_NOFILE))
    threads, by = min(_thread_limits(), default=(UNLIMITED, "nothing"))
    return Grant(soft, hard, threads, by, _ports())


def raise_descriptors(wanted: int) -> int | None:
    """Raise the soft limit on open files to `wanted` or more, as far as the hard limit allows.

    Returns the new limit; None when nothing was changed. Processes started later inherit it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if _count(soft) >= wanted or _count(hard) <= _count(soft):
        return None
    new = min(max(wanted, COMFORTABLE), _count(hard))
    resource.setrlimit(resource.RLIMIT_NOFILE, (new, hard))
    return new


def lacks(need: Need, grant: Grant) -> list[str]:
    """A sentence for each resource of which there is too little, with numbers and advice."""
    rows = (
        (
            "open files",
            need.descriptors,
            grant.descriptors_at_most,
            "raise `ulimit -n`, LimitNOFILE= of a systemd unit, or --ulimit nofile= of a container",
        ),
        (
            "threads",
            need.threads,
            grant.threads,
            f"the limit is {grant.threads_by}: raise `ulimit -u`, TasksMax= of a systemd unit, or "
            "--pids-limit of a container, or end other processes",
        ),
        (
            "local ports",
            need.ports,
            grant.ports,
            "widen it: sysctl net.ipv4.ip_local_port_range",
        ),
    )
    return [
        f"{what}: {total(parts):,} are needed ({_sum(parts)}), {granted:,} are granted; {advice}"
        for what, parts, granted, advice in rows
        if total(parts) > granted
    ]


def _sum(parts: Iterable[Part]) -> str:
    return " + ".join(f"{part.count:,} {part.what}" for part in parts)


def _count(value: int) -> int:
    return UNLIMITED if value == resource.RLIM_INFINITY else value


def _ports() -> int:
    try:
        low, high = (PROC / "sys/net/ipv4/ip_local_port_range").read_text().split()
    except (OSError, ValueError):
        return UNLIMITED
    return max(0, int(high) - int(low) + 1)


def _thread_limits() -> Iterator[tuple[int, str]]:
    """How many threads may still be started under each limit, and the limit's name."""
    soft = _count(resource.getrlimit(resource.RLIMIT_NPROC)[0])
    if soft != UNLIMITED and os.geteuid() != 0:  # it does not hold for root
        yield max(0, soft - _threads_of_user()), f"RLIMIT_NPROC={soft}"
    for folder in _cgroups():
        most, now = _number(folder / "pids.max"), _number(folder / "pids.current")
        if most is not None and now is not None:
            yield max(0, most - now), f"{folder}/pids.max={most}"


def _threads_of_user() -> int:
    """All threads of all processes of this user, which the kernel counts together."""
    user, threads = os.getuid(), 0
    for folder in PROC.iterdir():
        if folder.name.isdecimal():
            try:
                if folder.stat().st_uid == user:
                    threads += len(os.listdir(folder / "task"))
            except OSError:
                continue  # it has ended meanwhile
    return threads


def _cgroups() -> Iterator[Path]:
    """The folders of this process's control groups that may limit its threads, up to the root."""
    try:
        lines = (PROC / "self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, names, inside = line.split(":", 2)
        root = CGROUPS if not names else CGROUPS / "pids" if "pids" in names.split(",") else None
        if root is None:
            continue
        folder = root / inside.strip("/")
        yield from (place for place in (folder, *folder.parents) if place.is_relative_to(root))


def _number(path: Path) -> int | None:
    """The number in a file of a control group; None when the file is missing or says "max"."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
