"""Does the engine's own argument parser know every flag of a profile, with its value?"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence

from dflashq.core.errors import ConfigError, EngineError
from dflashq.engine.profiles import Profile

TIMEOUT_S = 300.0  # importing SGLang is most of it
# Runs in the engine's python. One line of JSON a command line: what the parser says, "" when
# nothing. Abbreviations are off: a flag that is the beginning of another one is not that one.
_PROGRAM = """
import argparse, contextlib, io, json, sys
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser(prog="sglang", allow_abbrev=False)
ServerArgs.add_cli_args(parser)
said = []
for line in json.load(sys.stdin):
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        try:
            parser.parse_args(line)
            said.append("")
        except SystemExit:
            said.append(errors.getvalue().strip().rpartition("error: ")[2])
print(json.dumps(said))
"""


def check_flags(profiles: Sequence[Profile], python: str, env: Mapping[str, str]) -> list[str]:
    """For each sglang profile what the parser of `python`'s SGLang says against it; "" for nothing.

    `env` is what that python needs beside our environment. Blocks for the import of SGLang, up to
    minutes. EngineError when it cannot be imported.
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
    said: list[str] = json.loads(done.stdout.strip().splitlines()[-1])
    return said
