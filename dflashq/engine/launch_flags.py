"""Whether the engine's own argument parser accepts every flag of a profile."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence

from dflashq.core.errors import ConfigError, EngineError
from dflashq.engine.profiles import Profile

TIMEOUT_S = 300.0  # importing SGLang is most of it
# Runs in the engine's python. Reads a JSON list of command lines, prints a JSON list with the
# parser's error for each, "" for none. Without abbreviations: the beginning of a flag is another.
_PROGRAM = """
import argparse, contextlib, io, json, sys
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser(prog="sglang", allow_abbrev=False)
ServerArgs.add_cli_args(parser)
errors = []
for line in json.load(sys.stdin):
    stderr = io.StringIO()
    with contextlib.redirect_stderr(stderr):
        try:
            parser.parse_args(line)
            errors.append("")
        except SystemExit:
            errors.append(stderr.getvalue().strip().rpartition("error: ")[2])
print(json.dumps(errors))
"""


def check_flags(profiles: Sequence[Profile], python: str, env: Mapping[str, str]) -> list[str]:
    """The error of SGLang's parser for each profile of kind sglang; "" for an accepted one.

    `python` has SGLang; `env` is added to our environment for it. Blocks while it imports SGLang,
    up to minutes. ConfigError when there is no such python, EngineError when the import fails.
    """
    lines = [p.argv(30000, 21000, p.model.path or "model", python)[3:] for p in profiles]
    try:
        done = subprocess.run(
            [python, "-c", _PROGRAM],
            input=json.dumps(lines),
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except OSError as exc:
        raise ConfigError(
            f"there is no engine python at {python} ({exc.strerror}): install the engine, or set "
            "DFLASHQ_ENGINE_PYTHON."
        ) from None
    except subprocess.TimeoutExpired:
        raise EngineError(f"importing SGLang took more than {TIMEOUT_S:.0f} s.") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no error text"])[-1]
        raise EngineError(f"SGLang's argument parser could not be loaded with {python}: {last}")
    errors: list[str] = json.loads(done.stdout.strip().splitlines()[-1])
    return errors
