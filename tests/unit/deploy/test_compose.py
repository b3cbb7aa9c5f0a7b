"""docker-compose.yml and .env.example: nothing public, no password, only settings that exist."""

from __future__ import annotations

import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dflashq.config import Settings
from dflashq.engine.profiles import known_profiles
from tests.support.paths import ROOT

yaml = pytest.importorskip("yaml")

TEXT = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
EXAMPLE = (ROOT / ".env.example").read_text(encoding="utf-8")
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(TEXT)["services"]
VARIABLES = {f"DFLASHQ_{name.upper()}" for name in Settings.model_fields}
SECRET = re.compile(r"PASSWORD|SECRET|AUTH|TOKEN|KEY")
# Made of required variables and names alone, or optional and empty.
REQUIRED = re.compile(r"(?:[a-z]+:)?\$\{[A-Z0-9_]+:\?[^}]+\}(?:,[a-z]+:\$\{[A-Z0-9_]+:\?[^}]+\})*")
OPTIONAL = re.compile(r"\$\{[A-Z0-9_]+:-\}")


def environments() -> Iterator[tuple[str, str, str]]:
    """(service, variable, value) of everything in the file."""
    for name, service in SERVICES.items():
        for variable, value in service.get("environment", {}).items():
            yield name, variable, value


def in_example() -> set[str]:
    """Every variable of .env.example, those in comments too."""
    return set(re.findall(r"^#?([A-Z][A-Z0-9_]+)=", EXAMPLE, re.MULTILINE))


def test_only_loopback_ports_are_published() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(ports) == 6
    for port in ports:
        assert str(port).startswith("127.0.0.1:"), port
    assert not any("network_mode" in service for service in SERVICES.values())


def test_no_password_stands_in_the_file_or_has_a_default() -> None:
    secrets = [(s, var, value) for s, var, value in environments() if SECRET.search(var)]
    assert len(secrets) >= 10
    for service, variable, value in secrets:
        known = REQUIRED.fullmatch(value) or OPTIONAL.fullmatch(value)
        assert known, f"{service}: {variable} is {value!r}"
    for name, default in re.findall(r"\$\{([A-Z0-9_]+):?-([^}]*)", TEXT):
        assert not default or not SECRET.search(name), f"{name} has a default"


def test_no_command_line_carries_a_password() -> None:
    for service in SERVICES.values():
        command = str(service.get("command", ""))
        assert not re.search(r"(?<!\$)\$\{?[A-Z_]*(PASSWORD|SECRET|AUTH)", command), command


def test_every_dflashq_variable_is_a_setting() -> None:
    used = set(re.findall(r"DFLASHQ_[A-Z0-9_]+", TEXT + EXAMPLE))
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    used |= set(re.findall(r"DFLASHQ_[A-Z0-9_]+", dockerfile))
    assert "DFLASHQ_ENGINE_PYTHON" in used
    assert used - {"DFLASHQ_"} <= VARIABLES


def test_every_variable_of_the_file_is_in_the_example() -> None:
    used = set(re.findall(r"(?<!\$)\$\{([A-Z0-9_]+)", TEXT))
    assert len(used) >= 6
    assert used <= in_example()


def test_the_example_holds_no_secret() -> None:
    secrets = re.findall(r"^#?([A-Z0-9_]+)=(.*)$", EXAMPLE, re.MULTILINE)
    filled = {name: value for name, value in secrets if SECRET.search(name) and value}
    assert filled == {}


def test_every_service_has_a_fixed_image_time_to_stop_and_a_health_check() -> None:
    for name, service in SERVICES.items():
        assert "build" in service or re.search(r":v?\d", service["image"]), name
        if name != "cli":
            assert service["stop_grace_period"] in ("60s", "90s"), name
            assert "healthcheck" in service, name


def test_workers_are_one_per_gpu_and_start_only_when_asked() -> None:
    workers = {n: s for n, s in SERVICES.items() if n.startswith("worker-")}
    gpus = [service["environment"]["DFLASHQ_GPU"] for service in workers.values()]
    assert len(gpus) == len(set(gpus)) == 2
    for name, service in workers.items():
        assert name == f"worker-gpu{service['environment']['DFLASHQ_GPU']}"
        assert service["profiles"] == ["gpu"]
        assert "gpu-locks:/tmp/dflashq-locks" in service["volumes"]
    assert str(Settings.model_fields["lock_dir"].get_default(call_default_factory=True)) == (
        "/tmp/dflashq-locks"
    )


def test_workers_of_two_machines_share_no_name() -> None:
    """The file is copied from one to another, so no default may be the same on both."""
    workers = [service for name, service in SERVICES.items() if name.startswith("worker-")]
    assert {service["hostname"] for service in workers} == {"${WORKER_HOST:-}"}
    assert "#WORKER_HOST=\n" in EXAMPLE


def test_the_default_profile_exists() -> None:
    chosen = re.search(r"\$\{DFLASHQ_PROFILE:-([^}]+)\}", TEXT)
    assert chosen is not None
    assert chosen[1] in known_profiles()
    assert f"DFLASHQ_PROFILE={chosen[1]}\n" in EXAMPLE


def test_redis_keeps_everything_on_disk_and_evicts_nothing() -> None:
    command = str(SERVICES["redis"]["command"])
    for line in ("appendonly yes", "appendfsync always", "maxmemory-policy noeviction"):
        assert line in command


def make_env(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "make_env.py"), str(folder)],
        capture_output=True,
        text=True,
        check=False,
        umask=0,
    )


def test_make_env_fills_every_password_and_keeps_it_private(tmp_path: Path) -> None:
    done = make_env(tmp_path)
    assert done.returncode == 0, done.stderr
    path = tmp_path / ".env"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    rows = dict(re.findall(r"^([A-Z0-9_]+)=(.*)$", path.read_text(encoding="utf-8"), re.MULTILINE))
    needed = set(re.findall(r"(?<!\$)\$\{([A-Z0-9_]+):\?", TEXT))
    assert needed <= set(rows)
    values = [rows[name] for name in needed]
    assert all(len(value) >= 40 for value in values)
    assert len(set(values)) == len(values)
    assert not any(value in done.stdout + done.stderr for value in values)


def test_make_env_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("DFLASHQ_REDIS_PASSWORD=mine\n")
    done = make_env(tmp_path)
    assert done.returncode == 1
    assert "left as it is" in done.stderr
    assert (tmp_path / ".env").read_text() == "DFLASHQ_REDIS_PASSWORD=mine\n"


def test_everything_mounted_from_the_repository_exists() -> None:
    mounts = [v for service in SERVICES.values() for v in service.get("volumes", [])]
    ours = [mount.split(":")[0] for mount in mounts if mount.startswith("./")]
    assert len(ours) == 4
    assert all((ROOT / path).exists() for path in ours)
    named = {m.split(":")[0] for m in mounts if not m.startswith((".", "$"))}
    assert named == set(yaml.safe_load(TEXT)["volumes"])


def test_prometheus_finds_every_worker_on_its_port() -> None:
    jobs = yaml.safe_load((ROOT / "scripts/deploy/prometheus.yml").read_text())["scrape_configs"]
    [workers] = [job for job in jobs if job["job_name"] == "dflashq-worker"]
    found = {name: row["port"] for row in workers["dns_sd_configs"] for name in row["names"]}
    first = int(SERVICES["worker-gpu0"]["environment"]["DFLASHQ_METRICS_PORT"])
    assert found == {"worker-gpu0": first, "worker-gpu1": first + 1}
    targets = {
        target for job in jobs for row in job.get("static_configs", []) for target in row["targets"]
    }
    assert {target.split(":")[0] for target in targets} <= set(SERVICES)


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="no docker-compose here")
def test_docker_compose_accepts_the_file(tmp_path: Path) -> None:
    make_env(tmp_path)
    for extra in ([], ["--profile", "gpu"]):
        done = subprocess.run(
            [
                *("docker-compose", "--env-file", str(tmp_path / ".env"), *extra),
                *("-f", str(ROOT / "docker-compose.yml"), "config"),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        shown = set(yaml.safe_load(done.stdout)["services"])
        assert {"redis", "s3", "flower", "monitor", "prometheus", "grafana"} <= shown
