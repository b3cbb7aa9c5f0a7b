"""The checks of the engine: profile, engine, model folder, tokenizer, GPU."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from dflashq.config import Settings
from dflashq.core.errors import ConfigError, DflashqError
from dflashq.engine.model_folder import check_model
from dflashq.engine.profiles import Profile, load_profile
from dflashq.operations.doctor.finding import FAILED, SKIPPED, Finding, SkippedCheck, run_check
from dflashq.system import nvidia_smi
from dflashq.system.commands import run_tool

IMPORT_TIMEOUT_S, RENDER_TIMEOUT_S = 180.0, 120.0
# Runs in a process of its own, so that no caller of operations loads transformers.
RENDER = (
    "import sys; from dflashq.engine.chat_renderer import ChatRenderer; "
    "ids = ChatRenderer(sys.argv[1]).render("
    "[{'role': 'user', 'content': 'How warm is it?'}], None, thinking=sys.argv[2] == 'True'); "
    "print(len(ids))"
)


def engine(settings: Settings, name: str) -> Iterator[Finding]:
    """Check what a worker with this profile needs of the host. Blocks, up to minutes."""
    if not name:
        yield Finding("engine", SKIPPED, "no profile is set (--profile or DFLASHQ_PROFILE)")
        yield run_check("gpu", lambda: _gpu(settings, None))
        return
    loaded: list[Profile] = []
    yield run_check("profile", lambda: _profile(settings, name, loaded))
    if loaded:
        yield from _host(settings, loaded[0])


def _host(settings: Settings, profile: Profile) -> Iterator[Finding]:
    yield run_check("engine", lambda: _importable(profile))
    model = run_check("model", lambda: check_model(Path(profile.model.path)))
    yield model
    if model.state == FAILED:
        yield Finding("tokenizer", SKIPPED, "the model folder comes first")
    else:
        yield run_check("tokenizer", lambda: _renders(profile))
    yield run_check("gpu", lambda: _gpu(settings, profile))


def _profile(settings: Settings, name: str, loaded: list[Profile]) -> str:
    loaded.append(load_profile(name, settings))
    return f"{loaded[0].name} serves {loaded[0].model.id} on queue {loaded[0].queue}"


def _importable(profile: Profile) -> str:
    launch = profile.launch
    if launch.kind != "sglang":
        raise SkippedCheck(f"launch kind {launch.kind!r} is not ours to import")
    if shutil.which(launch.python) is None:
        raise ConfigError(
            f"there is no python at {launch.python}: install the engine there, or set "
            "DFLASHQ_ENGINE_PYTHON"
        )
    code = "import sglang; print(sglang.__version__)"
    try:
        version = run_tool(
            [launch.python, "-c", code], launch.env, IMPORT_TIMEOUT_S, "importing sglang"
        )
    except DflashqError as exc:
        raise DflashqError(
            f"{exc}. `dflashq host setup --profile {profile.name}` installs the engine"
        ) from exc
    return f"sglang {version} in {launch.python}"


def _renders(profile: Profile) -> str:
    command = [sys.executable, "-c", RENDER, profile.model.path, str(profile.model.thinking)]
    count = run_tool(command, {}, RENDER_TIMEOUT_S, "rendering a prompt")
    return f"renders a prompt into {count} ids"


def _gpu(settings: Settings, profile: Profile | None) -> str:
    gpus = _gpus()
    if profile is not None and not _needs_gpu(profile):
        return "; ".join(gpus) if gpus else "none: fine for a CPU profile"
    if not gpus:
        if profile is None:
            raise SkippedCheck("none here; a worker needs one unless its profile runs on the CPU")
        raise DflashqError(
            f"nvidia-smi lists no GPU, and profile {profile.name} needs one: install the driver, "
            "or choose a CPU profile"
        )
    if settings.gpu and not any(_is(gpu, settings.gpu) for gpu in gpus):
        raise ConfigError(f"DFLASHQ_GPU={settings.gpu} is none of: {'; '.join(gpus)}")
    return "; ".join(gpus)


def _needs_gpu(profile: Profile) -> bool:
    """Whether the profile needs a GPU of this host; unknown (False) for launch kinds but sglang."""
    return profile.launch.kind == "sglang" and not profile.on_cpu


def _gpus() -> list[str]:
    """`0: NAME, UUID` for each GPU; none without a driver."""
    return [f"{index}: {name}, {uuid}" for index, name, uuid in nvidia_smi.query("index,name,uuid")]


def _is(gpu: str, wanted: str) -> bool:
    return gpu.partition(":")[0] == wanted or gpu.rpartition(", ")[2] == wanted
