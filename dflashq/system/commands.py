"""One command of this host, run to its end."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence

from dflashq.core.errors import DflashqError


def run_tool(command: Sequence[str], env: Mapping[str, str], timeout_s: float, doing: str) -> str:
    """What the command printed. Blocks; DflashqError with the last line of its errors."""
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise DflashqError(f"{doing} took more than {timeout_s:.0f} s ({command[0]})") from None
    except OSError as exc:
        raise DflashqError(f"{doing} failed: {command[0]}: {exc.strerror or exc}") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no error text"])[-1]
        raise DflashqError(f"{doing} failed with {command[0]} (exit {done.returncode}): {last}")
    return done.stdout.strip()
