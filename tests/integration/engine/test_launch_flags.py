"""Every flag of every profile is one that SGLang's own parser knows, with a value it takes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from dflashq.config import Settings
from dflashq.core.errors import ConfigError, EngineError
from dflashq.embedded.cpu_engine import engine_environment
from dflashq.engine.launch_flags import check_flags
from dflashq.engine.profiles import Flag, Profile, known_profiles, load_profile

FIELDS = """
import json
from sglang.srt.server_args import ServerArgs, record_fields
print(json.dumps([field.name for field in record_fields(ServerArgs)]))
"""


def recipes() -> list[Profile]:
    """The shipped profiles that start an SGLang."""
    settings = Settings(_env_file=None)  # type: ignore[call-arg]
    loaded = [load_profile(name, settings) for name in known_profiles()]
    return [profile for profile in loaded if profile.launch.kind == "sglang"]


def with_flag(profile: Profile, flag: str, value: str | None) -> Profile:
    flags = (*profile.launch.flags, Flag(flag=flag, value=value, why="a test"))
    launch = profile.launch.model_copy(update={"flags": flags})
    return profile.model_copy(update={"launch": launch})


@pytest.mark.sglang
def test_every_flag_is_known_and_every_value_taken(engine_python: Path) -> None:
    good = recipes()
    assert len(good) == 6
    bad = [
        with_flag(good[0], "--mamba-scheduler-strategy", "no_buffer"),
        with_flag(good[0], "--attention-backend", "flashinfr"),
        with_flag(good[0], "--max-running-requests", "many"),
        with_flag(good[0], "--disable-radix", None),
    ]
    said = check_flags([*good, *bad], str(engine_python), engine_environment())
    assert dict(zip((p.name for p in good), said, strict=False)) == {p.name: "" for p in good}
    assert "unrecognized arguments: --mamba-scheduler-strategy" in said[6]
    assert "invalid choice: 'flashinfr'" in said[7]
    assert "invalid int value: 'many'" in said[8]
    assert "unrecognized arguments: --disable-radix" in said[9]


@pytest.mark.sglang
def test_every_expectation_is_a_field_of_the_report(engine_python: Path) -> None:
    """`/server_info` is the server's arguments and a few more: a wrong name would refuse all."""
    done = subprocess.run(
        [engine_python, "-c", FIELDS],
        env=os.environ | engine_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    fields = set(json.loads(done.stdout.strip().splitlines()[-1]))
    settings = Settings(_env_file=None)  # type: ignore[call-arg]
    for name in known_profiles():
        for key in load_profile(name, settings).expectations():
            assert key == "version" or "." in key or key in fields, (name, key)


def test_a_python_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="DFLASHQ_ENGINE_PYTHON"):
        check_flags(recipes()[:1], str(tmp_path / "python"), {})


def test_a_python_without_sglang_says_what_it_said(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'ModuleNotFoundError: sglang' >&2\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(EngineError, match="ModuleNotFoundError: sglang"):
        check_flags(recipes()[:1], str(python), {})
