"""Engine profiles: how to launch a server, and what it must then say about itself (TOML)."""

from __future__ import annotations

import glob
import os
import tomllib
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dflashq import config
from dflashq.core import keys
from dflashq.core.errors import ConfigError
from dflashq.core.model import Guard, Sampling

Scalar = bool | int | float | str


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelSection(_Table):
    """The model: `id` is short and names the queue, `source` is its address on the hub.

    `path` is the folder with weights, tokenizer and chat template; `context_length` in tokens.
    """

    id: str = Field(min_length=1)
    source: str = ""
    revision: str = ""
    path: str = ""
    thinking: bool = True
    context_length: int | None = Field(None, ge=1)


class Flag(_Table):
    """One launch flag, its value (None for a switch), and why it is there."""

    flag: str = Field(pattern=r"^--[a-z0-9]")
    value: Scalar | None = None
    why: str = Field(min_length=1)

    def words(self) -> list[str]:
        """The flag as words of a command line."""
        return [self.flag] if self.value is None else [self.flag, str(self.value)]


class Launch(_Table):
    """How to start the server. `sglang`: a recipe of flags; `command`: any argument list, with
    the placeholders {python} {port} {nccl_port} {model} {gpu}; `external`: a `url`, not started.

    `dialect`: the native API of SGLang, or chat completions that return token ids. `stall_s`:
    requests run and no token moves for so long means that the engine hangs; `poll_s` is the pause
    between two looks at its metrics. `stream_every`: ids in a piece of a long generation, which is
    looked at for loops as it comes; 0 looks at whole answers only. `sick_s`: an engine of ours
    that answers with errors only for so long is started again.
    """

    kind: Literal["sglang", "command", "external"] = "sglang"
    dialect: Literal["sglang", "openai"] = "sglang"
    python: str = "python"
    flags: tuple[Flag, ...] = ()
    argv: tuple[str, ...] = ()
    url: str = ""
    env: dict[str, str] = {}
    start_timeout_s: float = Field(600.0, gt=0)
    stop_grace_s: float = Field(20.0, ge=0)
    stall_s: float = Field(300.0, gt=0)
    sick_s: float = Field(120.0, gt=0)
    poll_s: float = Field(5.0, gt=0)
    stream_every: int = Field(0, ge=0)

    @model_validator(mode="after")
    def _complete(self) -> Launch:
        if self.kind == "command" and not self.argv:
            raise ValueError('kind = "command" needs argv')
        if "@" in self.url:
            raise ValueError("a url holds no password: set DFLASHQ_ENGINE_API_KEY")
        return self


class Range(_Table):
    """An inclusive range; text is compared as a version, as far as the bound spells it out.

    `flag` is the launch flag to name when the value is outside.
    """

    min: int | float | str | None = None
    max: int | float | str | None = None
    flag: str = ""


class Concurrency(_Table):
    """Generations in flight: the engine's running limit plus `margin`, at most `limit`.

    Without `margin` it is a quarter of the running limit, at least 8: enough to refill a slot
    at once; more only queues inside the engine. `limit` also stands in for the running limit of
    a server that tells none. Fewer are kept in flight while requests queue inside the engine for
    more than `queue_s` on average, or while it takes running ones back for want of memory.
    """

    margin: int | None = Field(None, ge=0)
    limit: int | None = Field(None, ge=1)
    queue_s: float = Field(60.0, gt=0)

    def in_flight(self, running_limit: int) -> int:
        """How many generations to keep in flight on an engine that runs `running_limit`."""
        margin = self.margin if self.margin is not None else max(8, running_limit // 4)
        wanted = running_limit + margin
        return wanted if self.limit is None else min(wanted, self.limit)


class Profile(_Table):
    """One engine, complete: model, launch, what `/server_info` must report, sampling."""

    name: str = Field(min_length=1)
    about: str = ""
    model: ModelSection
    launch: Launch = Launch()
    expect: dict[str, Scalar | Range] = {}
    sampling: Sampling = Sampling()
    guard: Guard = Guard()
    concurrency: Concurrency = Concurrency()

    @property
    def queue(self) -> str:
        """The Celery queue that the workers of this model read."""
        return keys.queue_name(self.model.id)

    @property
    def on_cpu(self) -> bool:
        """Whether SGLang is asked to run without a GPU; of other launch kinds nobody knows."""
        words = [word for flag in self.launch.flags for word in flag.words()]
        return self.launch.kind == "sglang" and ("--device", "cpu") in pairwise(words)

    def argv(
        self, port: int, nccl_port: int, model_path: str, python: str, gpu: str = ""
    ) -> list[str]:
        """The command line that starts the server. ConfigError for an external engine."""
        if self.launch.kind == "external":
            raise ConfigError(
                f"profile {self.name!r} is external: its server is not ours to start."
            )
        if self.launch.kind == "command":
            known = {"python": python, "port": port, "nccl_port": nccl_port}
            known |= {"model": model_path, "gpu": gpu}
            return [_fill(word, known) for word in self.launch.argv]
        return [
            *(python, "-m", "sglang.launch_server", "--host", "127.0.0.1"),
            *("--port", str(port), "--nccl-port", str(nccl_port)),
            *(word for flag in self._model_flags(model_path) for word in flag),
            *(word for flag in self.launch.flags for word in flag.words()),
        ]

    def _model_flags(self, model_path: str) -> list[tuple[str, str]]:
        flags = [("--model-path", model_path), ("--served-model-name", self.model.id)]
        if self.model.revision:
            flags.append(("--revision", self.model.revision))
        if self.model.context_length is not None:
            flags.append(("--context-length", str(self.model.context_length)))
        return flags

    def expectations(self) -> dict[str, Scalar | Range]:
        """What the server must report: [expect], and for sglang what [model] already says."""
        if self.launch.kind != "sglang":
            return dict(self.expect)
        flags = self._model_flags(self.model.path)
        own: dict[str, Scalar | Range] = {
            flag.removeprefix("--").replace("-", "_"): value for flag, value in flags if value
        }
        if self.model.context_length is not None:
            own["context_length"] = self.model.context_length
        return own | self.expect


def _fill(text: str, values: dict[str, Any]) -> str:
    for key, value in values.items():
        text = text.replace("{" + key + "}", str(value))
    return text


def known_profiles() -> list[str]:
    """Names of the profiles that ship with the package."""
    folder = files("dflashq.engine") / "profiles"
    return sorted(
        entry.name.removesuffix(".toml")
        for entry in folder.iterdir()
        if entry.name.endswith(".toml")
    )


def load_profile(name_or_path: str, settings: config.Settings | None = None) -> Profile:
    """Read a profile by name or from a TOML file, with {cache} and {package} replaced.

    In the paths of the model and of python a `*` stands for the newest match. The settings
    `model_path` and `engine_python`, when set, take the place of the profile's own.
    ConfigError names the file and each wrong field, or lists the known names.
    """
    settings = settings if settings is not None else config.load()
    where, text = _read(name_or_path)
    try:
        raw = tomllib.loads(text)
        profile = Profile.model_validate({"name": Path(where).stem, **raw})
    except tomllib.TOMLDecodeError as exc:
        raise ConfigError(f"profile {where} is not TOML: {exc}.") from None
    except ValidationError as exc:
        rows = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in exc.errors())
        raise ConfigError(f"profile {where} is wrong: {rows}.") from None
    return _placed(profile, settings)


def _read(name_or_path: str) -> tuple[str, str]:
    if not name_or_path:
        known = ", ".join(known_profiles())
        raise ConfigError(f"no engine profile is set: set DFLASHQ_PROFILE to a file or to {known}.")
    if name_or_path in known_profiles():
        source = files("dflashq.engine") / "profiles" / f"{name_or_path}.toml"
        return f"{name_or_path}.toml", source.read_text()
    path = Path(name_or_path)
    if path.suffix != ".toml" or not path.is_file():
        known = ", ".join(known_profiles())
        raise ConfigError(f"no profile {name_or_path!r}: it is no TOML file and none of {known}.")
    return str(path), path.read_text()


def _placed(profile: Profile, settings: config.Settings) -> Profile:
    places = {"cache": settings.cache_dir, "package": files("dflashq")}
    launch, model = profile.launch, profile.model
    python = settings.engine_python or _newest(_fill(launch.python, places))
    env = {key: _fill(value, places) for key, value in launch.env.items()}
    path = settings.model_path or _newest(_fill(model.path, places))
    url = settings.engine_url if launch.kind == "external" else ""
    return profile.model_copy(
        update={
            "launch": launch.model_copy(
                update={"python": python, "env": env, "url": (url or launch.url).rstrip("/")}
            ),
            "model": model.model_copy(update={"path": path}),
        }
    )


def _newest(pattern: str) -> str:
    """The newest path that matches; the pattern itself when none does or it is a plain path.

    A pattern that ends in a slash matches folders only.
    """
    if "*" not in pattern:
        return pattern
    # lstat: the python of a virtual environment is a link to one that is older than all.
    found = max(glob.glob(pattern), key=lambda path: os.lstat(path).st_mtime, default=pattern)
    return found.rstrip("/")
