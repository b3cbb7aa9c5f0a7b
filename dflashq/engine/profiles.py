"""Engine profiles: how to launch a server, and what it must then report about itself (TOML)."""

from __future__ import annotations

import glob
import os
import tomllib
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)

from dflashq import config
from dflashq.core import keys
from dflashq.core.errors import ConfigError
from dflashq.core.model import Guard, Sampling

Scalar = bool | int | float | str


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelSection(_Table):
    """The model. `id` is short and names the queue; `source` is its name on the Hugging Face hub.

    `path` is the folder with weights, tokenizer and chat template; `context_length` is in tokens.
    """

    id: str = Field(min_length=1)
    source: str = ""
    revision: str = ""
    path: str = ""
    thinking: bool = True
    context_length: int | None = Field(None, ge=1)


class Flag(_Table):
    """One launch flag, its value (None for a switch), and why the profile sets it."""

    flag: str = Field(pattern=r"^--[a-z0-9]")
    value: Scalar | None = None
    why: str = Field(min_length=1)

    def words(self) -> list[str]:
        """The flag as arguments of a command line."""
        return [self.flag] if self.value is None else [self.flag, str(self.value)]


class Launch(_Table):
    """How to start the server and how to watch it.

    `kind`: `sglang` is started with `flags`; `command` with `argv`, where {python} {port}
    {nccl_port} {model} {gpu} are replaced; `external` runs elsewhere at `url` and is not started.
    `dialect`: the API that it is used through, a key of `engine.dialects.DIALECTS`.

    `stall_s`: an engine on which requests run and no token moves for this long counts as hung.
    `sick_s`: an engine of ours that answers with nothing but errors for this long is restarted.
    `poll_s`: pause between two reads of its metrics. `stream_every`: ids in one piece of a
    streamed generation, which is searched for loops as it grows; 0: only complete answers are.
    """

    kind: Literal["sglang", "command", "external"] = "sglang"
    dialect: str = "sglang"
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

    @field_validator("dialect")
    @classmethod
    def _known_dialect(cls, name: str) -> str:
        # Here, since the dialects import this module, and take a fifth of a second to import.
        from dflashq.engine.dialects import DIALECTS  # noqa: PLC0415

        if name not in DIALECTS:
            raise ValueError(f"{name!r} is none of {', '.join(map(repr, DIALECTS))}")
        return name

    @model_validator(mode="after")
    def _complete(self) -> Launch:
        if self.kind == "command" and not self.argv:
            raise ValueError('kind = "command" needs argv')
        if "@" in self.url:
            raise ValueError("a url holds no password: set DFLASHQ_ENGINE_API_KEY")
        return self


class Range(_Table):
    """An inclusive range. A bound that is text is a version: "0.5" as `max` includes 0.5.23.

    `flag` is the launch flag that an error about this value recommends.
    """

    min: int | float | str | None = None
    max: int | float | str | None = None
    flag: str = ""


class Concurrency(_Table):
    """How many generations to keep in flight on one engine.

    They are the engine's running limit plus `margin`, at most `limit`. The default margin is a
    quarter of the running limit, at least 8: enough to refill a freed slot at once, while more
    would only queue inside the engine. For a server that reports no running limit, `limit` stands
    in for it. The number is lowered while requests queue inside the engine for more than
    `queue_s` seconds on average, and while the engine retracts running requests to free memory.
    """

    margin: int | None = Field(None, ge=0)
    limit: int | None = Field(None, ge=1)
    queue_s: float = Field(60.0, gt=0)

    def in_flight(self, running_limit: int) -> int:
        """How many generations to keep in flight on an engine that runs `running_limit` at once."""
        margin = self.margin if self.margin is not None else max(8, running_limit // 4)
        count = running_limit + margin
        return count if self.limit is None else min(count, self.limit)


class Profile(_Table):
    """One engine: its model, its launch, what `/server_info` must report, how it is sampled."""

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
        """Whether SGLang is launched with `--device cpu`; False for every other launch kind."""
        words = [word for flag in self.launch.flags for word in flag.words()]
        return self.launch.kind == "sglang" and ("--device", "cpu") in pairwise(words)

    def api_key(self, settings: config.Settings) -> SecretStr | None:
        """The key to send to the server: only an external one gets the configured key.

        A server that we start has none, and a person's key must not reach it.
        """
        return settings.engine_api_key if self.launch.kind == "external" else None

    def argv(
        self, port: int, nccl_port: int, model_path: str, python: str, gpu: str = ""
    ) -> list[str]:
        """The command line that starts the server. ConfigError for an external engine."""
        if self.launch.kind == "external":
            raise ConfigError(
                f"profile {self.name!r} is external: its server is not ours to start."
            )
        if self.launch.kind == "command":
            values = {"python": python, "port": port, "nccl_port": nccl_port}
            values |= {"model": model_path, "gpu": gpu}
            return [_fill(word, values) for word in self.launch.argv]
        module = [python, "-m", "sglang.launch_server", "--host", "127.0.0.1"]
        ports = ["--port", str(port), "--nccl-port", str(nccl_port)]
        model = [word for flag in self._model_flags(model_path) for word in flag]
        return (
            module + ports + model + [word for flag in self.launch.flags for word in flag.words()]
        )

    def _model_flags(self, model_path: str) -> list[tuple[str, str]]:
        flags = [("--model-path", model_path), ("--served-model-name", self.model.id)]
        if self.model.revision:
            flags.append(("--revision", self.model.revision))
        if self.model.context_length is not None:
            flags.append(("--context-length", str(self.model.context_length)))
        return flags

    def expectations(self) -> dict[str, Scalar | Range]:
        """What the server must report: `[expect]`, and for kind sglang also what `[model]` says."""
        if self.launch.kind != "sglang":
            return dict(self.expect)
        flags = self._model_flags(self.model.path)
        from_model: dict[str, Scalar | Range] = {
            flag.removeprefix("--").replace("-", "_"): value for flag, value in flags if value
        }
        if self.model.context_length is not None:
            from_model["context_length"] = self.model.context_length
        return from_model | self.expect


def _fill(text: str, values: dict[str, Any]) -> str:
    for key, value in values.items():
        text = text.replace("{" + key + "}", str(value))
    return text


def known_profiles() -> list[str]:
    """The names of the profiles that ship with the package, sorted."""
    folder = files("dflashq.engine") / "profiles"
    return sorted(
        entry.name.removesuffix(".toml")
        for entry in folder.iterdir()
        if entry.name.endswith(".toml")
    )


def load_profile(name_or_path: str, settings: config.Settings | None = None) -> Profile:
    """Read the profile of this name, or the TOML file at this path.

    {cache} and {package} are replaced. In the paths of the model and of python a `*` stands for
    the newest match. The settings `model_path`, `engine_python` and (for an external server)
    `engine_url` override the profile. ConfigError names the file and each wrong field, or lists
    the known names.
    """
    settings = settings if settings is not None else config.load()
    path, text = _read(name_or_path)
    try:
        raw = tomllib.loads(text)
        profile = Profile.model_validate({"name": Path(path).stem, **raw})
    except tomllib.TOMLDecodeError as exc:
        raise ConfigError(f"profile {path} is not TOML: {exc}.") from None
    except ValidationError as exc:
        rows = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in exc.errors())
        raise ConfigError(f"profile {path} is wrong: {rows}.") from None
    return _with_paths(profile, settings)


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


def _with_paths(profile: Profile, settings: config.Settings) -> Profile:
    """The profile with every placeholder replaced and the overriding settings applied."""
    folders = {"cache": settings.cache_dir, "package": files("dflashq")}
    launch, model = profile.launch, profile.model
    python = settings.engine_python or _newest(_fill(launch.python, folders))
    env = {key: _fill(value, folders) for key, value in launch.env.items()}
    path = settings.model_path or _newest(_fill(model.path, folders))
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
    """The newest path that matches; the pattern itself when it has no `*` or nothing matches.

    A pattern that ends in a slash matches folders only.
    """
    if "*" not in pattern:
        return pattern
    # lstat: a virtual environment's python is a link, and its target is older than all of them.
    newest = max(glob.glob(pattern), key=lambda path: os.lstat(path).st_mtime, default=pattern)
    return newest.rstrip("/")
