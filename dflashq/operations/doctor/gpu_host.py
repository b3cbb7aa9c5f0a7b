"""The checks of what an engine needs of its GPU host, before minutes are spent on its start."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dflashq.config import Settings
from dflashq.core.errors import ConfigError, DflashqError
from dflashq.core.estimates.gpu_memory import LIVE_TOKENS, Architecture, MemoryFlags, fits, pool_mb
from dflashq.core.humanize import counted
from dflashq.embedded.cpu_engine import MODEL_RECORD
from dflashq.engine.gpu_lock import GpuLock
from dflashq.engine.profiles import Profile, Range, load_profile
from dflashq.operations.doctor.engine import IMPORT_TIMEOUT_S
from dflashq.operations.doctor.finding import Finding, SkippedCheck, run_check
from dflashq.operations.hosts import resource_needs
from dflashq.operations.hosts.model_download import check_record
from dflashq.system import disk, nvidia_smi, ports
from dflashq.system.commands import run_tool

MIB_IN_MB = 1.048576
RUNNING = "internal_states.0.effective_max_running_requests_per_dp"
WEIGHTS = ("*.safetensors", "*.bin")
# Attention backends by the major compute capability that has kernels for them.
BACKENDS = {
    9: ("flashinfer", "triton", "fa3"),
    10: ("flashinfer", "triton", "trtllm_mha", "fa4"),
    12: ("flashinfer", "triton", "trtllm_mha"),
}


def preflight(settings: Settings, name: str) -> Iterator[Finding]:
    """Check ports, disks and, for a profile, limits, hashes, versions, GPU memory and topology.

    A profile that cannot be read is the finding of another check. Blocks, for as long as it takes
    to read the model once.
    """
    yield run_check("ports", _ports)
    yield run_check("room", lambda: _room(settings))
    try:
        profile = load_profile(name, settings) if name else None
    except ConfigError:
        profile = None
    if profile is None:
        return
    need = resource_needs.worker_need(settings, profile)
    yield run_check("limits", lambda: resource_needs.check(need, "a worker with this profile"))
    yield run_check("model hashes", lambda: _hashes(Path(profile.model.path)))
    if profile.launch.kind == "sglang" and not profile.on_cpu:
        yield from _gpu_host(settings, profile)


def _gpu_host(settings: Settings, profile: Profile) -> Iterator[Finding]:
    yield run_check("driver", lambda: _driver(profile))
    yield run_check("toolkit", lambda: _toolkit(profile))
    yield run_check("attention backend", lambda: _backend(settings, profile))
    yield run_check("gpu memory", lambda: _memory(settings, profile))
    yield run_check("gpu processes", lambda: _processes(settings))
    yield run_check("topology", _topology)


def _ports() -> str:
    first = ports.free_port(host=ports.EVERYWHERE)
    second = ports.free_port(host=ports.EVERYWHERE, but=frozenset({first}))
    return f"free ones are found for HTTP and nccl ({first} and {second} now)"


def _room(settings: Settings) -> str:
    full = disk.full_places(settings)
    if full:
        raise DflashqError("; ".join(full))
    return "disks and /dev/shm are less than 80 % full"


def _hashes(folder: Path) -> str:
    if not (folder / MODEL_RECORD).is_file():
        raise SkippedCheck(
            f"{folder} has no {MODEL_RECORD}: `dflashq host setup` would have written one"
        )
    return check_record(folder, lambda _line: None)


def _torch_cuda(profile: Profile) -> tuple[int, ...]:
    """CUDA of the engine's torch as (13, 0). DflashqError when it has none."""
    python = profile.launch.python
    code = "import torch; print(torch.version.cuda)"
    version = run_tool(
        [python, "-c", code], profile.launch.env, IMPORT_TIMEOUT_S, "importing torch"
    )
    if not re.fullmatch(r"\d+\.\d+", version):
        raise DflashqError(f"torch in {python} is built without CUDA ({version}): install it again")
    return _version(version)


def _driver(profile: Profile) -> str:
    highest = re.search(r"CUDA Version: (\d+\.\d+)", nvidia_smi.report())
    if highest is None:
        raise DflashqError("nvidia-smi names no CUDA version: is the driver installed?")
    wanted = _torch_cuda(profile)
    if _version(highest[1]) < wanted:
        raise DflashqError(
            f"the driver goes up to CUDA {highest[1]}, torch of the engine needs "
            f"{_dotted(wanted)}: update the driver"
        )
    return f"CUDA {highest[1]}, torch needs {_dotted(wanted)}"


def _toolkit(profile: Profile) -> str:
    home = {**os.environ, **profile.launch.env}.get("CUDA_HOME")
    nvcc = str(Path(home) / "bin" / "nvcc") if home else "nvcc"
    wanted = _torch_cuda(profile)
    if shutil.which(nvcc) is None:
        raise DflashqError(
            f"there is no {nvcc}, and kernels are compiled at the first start: install the CUDA "
            f"{_dotted(wanted)} toolkit and set CUDA_HOME to it"
        )
    report = run_tool([nvcc, "--version"], {}, nvidia_smi.TIMEOUT_S, "asking nvcc")
    release = re.search(r"release (\d+\.\d+)", report)
    if release is None or _version(release[1]) != wanted:
        raise DflashqError(
            f"{nvcc} is CUDA {release[1] if release else 'unknown'}, torch of the engine "
            f"{_dotted(wanted)}: kernels would not compile. Set CUDA_HOME to that toolkit"
        )
    return f"{nvcc} is CUDA {release[1]}, as torch"


def _gpu_rows(settings: Settings, fields: str) -> list[list[str]]:
    """Rows of the GPU that the settings name, or of all; each begins with index and UUID."""
    rows = nvidia_smi.query(f"index,uuid,{fields}")
    chosen = [row for row in rows if settings.gpu in ("", *row[:2])]
    if not chosen:
        raise SkippedCheck("no GPU is listed")
    return chosen


def _backend(settings: Settings, profile: Profile) -> str:
    flags = _flags(profile)
    backend = str(flags.get("--attention-backend") or "")
    sentences = []
    for index, _, capability in _gpu_rows(settings, "compute_cap"):
        major = _version(capability)[0]
        known = BACKENDS.get(major, ())
        if backend and known and backend not in known:
            raise DflashqError(
                f"GPU {index} has compute capability {capability}, and {backend} has no kernels "
                f"for it: use --attention-backend {known[0]}"
            )
        fp8 = str(flags.get("--kv-cache-dtype") or "").startswith("fp8")
        if major == 12 and backend == "trtllm_mha" and fp8:
            raise DflashqError(
                f"GPU {index} (capability {capability}): trtllm_mha refuses an fp8 KV cache in "
                "prefill there: use --attention-backend flashinfer or triton"
            )
        sentences.append(f"GPU {index} has capability {capability}")
    return f"{', '.join(sentences)}: {backend or 'the default backend'} fits"


def _memory(settings: Settings, profile: Profile) -> str:
    folder = Path(profile.model.path)
    try:
        model = Architecture.of(json.loads((folder / "config.json").read_bytes()))
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise SkippedCheck(f"{folder}/config.json does not tell the sizes ({exc})") from None
    launch = MemoryFlags.of(_flags(profile))
    weights = sum(p.stat().st_size for glob in WEIGHTS for p in folder.glob(glob)) / 1e6
    sentences = []
    for index, _, total in _gpu_rows(settings, "memory.total"):
        pool = pool_mb(float(total) * MIB_IN_MB, weights, launch)
        running = fits(pool, model, launch)
        least = _least(profile)
        if running < least:
            raise DflashqError(
                f"GPU {index} ({float(total) / 1024:.0f} GiB): {weights / 1e3:.1f} GB of weights "
                f"leave {max(0.0, pool) / 1e3:.1f} GB, enough for {counted(running, 'request')} of "
                f"{LIVE_TOKENS:,} tokens, and the profile needs {least}"
            )
        sentences.append(
            f"GPU {index} has room for about {running} requests of {LIVE_TOKENS:,} tokens"
        )
    wanted = f", {launch.running} are asked for" if launch.running else ""
    return "; ".join(sentences) + wanted


def _least(profile: Profile) -> int:
    bound: Any = profile.expect.get(RUNNING)
    least = bound.min if isinstance(bound, Range) else bound
    return int(least) if isinstance(least, int | float) else 1


def _processes(settings: Settings) -> str:
    indexes = {row[1]: row[0] for row in _gpu_rows(settings, "name")}
    rows = [
        row
        for row in nvidia_smi.query("pid,gpu_uuid,used_memory", of="compute-apps")
        if row[1] in indexes
    ]
    strangers = [row for row in rows if not _held(settings, indexes[row[1]])]
    if strangers:
        shown = "; ".join(
            f"process {pid} has {mb} MiB of GPU {indexes[uuid]}" for pid, uuid, mb in strangers[:5]
        )
        raise DflashqError(f"{shown}: end them, or give the worker another GPU")
    return "none but those of workers" if rows else "none"


def _held(settings: Settings, gpu: str) -> bool:
    """Whether a worker of this host has the GPU: the process on it is then its engine."""
    lock = GpuLock(settings.lock_dir, gpu)
    try:
        lock.acquire()
    except DflashqError:
        return True
    lock.release()
    return False


def _topology() -> str:
    return nvidia_smi.topology()


def _flags(profile: Profile) -> dict[str, Any]:
    return {flag.flag: flag.value for flag in profile.launch.flags}


def _version(text: str) -> tuple[int, ...]:
    numbers = re.findall(r"\d+", text)
    if not numbers:
        raise DflashqError(f"{text!r} is no version number")
    return tuple(map(int, numbers[:2]))


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
