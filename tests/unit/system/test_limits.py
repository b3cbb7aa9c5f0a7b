"""What a process needs of its host, added up; what lacks is told in numbers with what to do."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from dflashq.config import Settings
from dflashq.core.errors import ConfigError
from dflashq.engine.profiles import Profile, load_profile
from dflashq.operations.hosts import resource_needs
from dflashq.system import limits
from dflashq.system.limits import UNLIMITED, Grant, Need, Part, lacks, raise_descriptors, total

PLENTY = Grant(UNLIMITED, UNLIMITED, UNLIMITED, "nothing", UNLIMITED)


@pytest.fixture
def files() -> Iterator[tuple[int, int]]:
    """The limits on open files, put back after the test; the hard one is never lowered."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def settings(**more: object) -> Settings:
    return Settings(_env_file=None, **more)  # type: ignore[call-arg, arg-type]


def profile(**tables: object) -> Profile:
    return Profile.model_validate({"name": "p", "model": {"id": "m"}, **tables})


def test_too_little_is_told_with_the_sum_and_what_to_do() -> None:
    need = Need(
        descriptors=(Part(250, "generations"), Part(50, "in reserve")),
        threads=(Part(40, "batches"),),
        ports=(Part(1000, "connections"),),
    )
    assert lacks(need, PLENTY) == []
    assert lacks(need, Grant(300, 300, 40, "x", 1000)) == []
    files, threads, ports = lacks(need, Grant(128, 299, 39, "RLIMIT_NPROC=99", 999))
    assert "300 are needed (250 generations + 50 in reserve), 299 are granted" in files
    assert "`ulimit -n`, LimitNOFILE=" in files
    assert "40 are needed" in threads
    assert "RLIMIT_NPROC=99" in threads
    assert "ip_local_port_range" in ports


def test_the_soft_limit_is_raised_only_where_it_is_too_low(files: tuple[int, int]) -> None:
    _, hard = files
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
    assert raise_descriptors(100) is None
    new = raise_descriptors(101)
    assert new is not None
    assert new >= 101
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (new, hard)
    assert raise_descriptors(101) is None


def test_what_the_kernel_grants_is_read() -> None:
    grant = limits.granted()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert grant.descriptors == (UNLIMITED if soft == resource.RLIM_INFINITY else soft)
    assert grant.descriptors_at_most == (UNLIMITED if hard == resource.RLIM_INFINITY else hard)
    assert 1000 < grant.ports < 65536
    assert grant.threads > 0


def test_the_narrowest_control_group_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    inner = groups / "outer" / "inner"
    for folder in (proc / "self", inner):
        folder.mkdir(parents=True)
    (proc / "self/cgroup").write_text("0::/outer/inner\n")
    (inner / "pids.max").write_text("max\n")
    (inner.parent / "pids.max").write_text("100\n")
    for folder in (inner, inner.parent):
        (folder / "pids.current").write_text("70\n")
    monkeypatch.setattr(limits, "PROC", proc)
    monkeypatch.setattr(limits, "CGROUPS", groups)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    grant = limits.granted()
    assert grant.threads == 30
    assert grant.threads_by.endswith("outer/pids.max=100")
    assert grant.ports == UNLIMITED, "what the kernel does not tell bounds nobody"


@pytest.mark.parametrize(
    ("tables", "running"),
    [
        ({}, None),
        ({"concurrency": {"limit": 12}}, 12),
        ({"expect": {"max_running_requests": 200}}, 200),
        (
            {
                "launch": {
                    "flags": [{"flag": resource_needs.RUNNING_FLAG, "value": 256, "why": "x"}]
                },
                "expect": {resource_needs.RUNNING_KEYS[0]: {"min": 64}},
            },
            256,
        ),
        ({"expect": {resource_needs.RUNNING_KEYS[0]: {"min": 64}}}, 64),
    ],
)
def test_the_running_limit_that_a_profile_tells(
    tables: dict[str, object], running: int | None
) -> None:
    assert resource_needs.known_running(profile(**tables)) == running


def test_a_worker_needs_a_connection_for_each_generation_and_its_abort() -> None:
    here = settings()
    known, idle = (resource_needs.worker_need(here, profile(), count) for count in (200, 0))
    margin = profile().concurrency.in_flight(0)
    in_flight = profile().concurrency.in_flight(200)
    assert in_flight == 250
    more = total(known.descriptors) - total(idle.descriptors)
    assert more == 2 * (in_flight - margin)
    busy = resource_needs.worker_need(settings(concurrency=8), profile(), 200)
    assert total(busy.threads) > total(known.threads)
    assert total(busy.descriptors) > total(known.descriptors)


def test_the_profiles_that_ship_fit_an_ordinary_host() -> None:
    """1,024 open files at first, 4,096 at most: what a plain Linux grants."""
    here = settings()
    for name in ("qwen3.6-27b-b200", "qwen3.6-27b-fp8-rtxpro6000", "tiny-cpu"):
        need = resource_needs.worker_need(here, load_profile(name, here))
        assert lacks(need, Grant(1024, 4096, 4096, "x", 28232)) == [], name


def test_many_workers_share_the_threads_of_a_host() -> None:
    single = resource_needs.worker_need(settings(), profile(), 64)
    eight = resource_needs.times(single, 8)
    assert total(eight.threads) == 8 * total(single.threads)
    assert total(eight.descriptors) == total(single.descriptors)


def test_a_refusal_names_who_and_how_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "granted", lambda: Grant(128, 128, 999, "x", 28232))
    need = Need(descriptors=(Part(300, "connections"),))
    with pytest.raises(ConfigError, match=r"too low for worker w0.*300 are needed.*128 are gran"):
        resource_needs.check(need, "worker w0")
    assert ConfigError.exit_code == 2
    monkeypatch.setattr(limits, "granted", lambda: PLENTY)
    assert resource_needs.check(need, "worker w0") == "unlimited open files (300 needed)"
