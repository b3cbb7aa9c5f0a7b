"""The pinned engine in an environment of its own, under the cache."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from importlib import metadata
from pathlib import Path

from dflashq.core.errors import DflashqError
from dflashq.embedded.cached_build import Echo, run_step, sole_builder

EXTRA = "sglang"
STAMP = "dflashq-complete.json"


def pinned() -> str:
    """The requirement that this version of dflashq asks for, as `sglang==0.5.23`."""
    for line in metadata.requires("dflashq") or []:
        need, _, marker = line.partition(";")
        if re.search(rf"""extra\s*==\s*["']{EXTRA}["']""", marker):
            return need.strip()
    raise DflashqError(
        f"this installation of dflashq names no engine (extra {EXTRA!r}): install it again"
    )


def engine_folder(cache_dir: Path, requirement: str) -> Path:
    """Where the environment of this engine and this Python belongs."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    digest = hashlib.sha256(f"{python} {requirement}".encode()).hexdigest()[:8]
    return cache_dir / "engines" / f"{requirement.replace('==', '-')}-{digest}"


def install(cache_dir: Path, requirement: str, trial: str, echo: Echo) -> Path:
    """The python that has the engine; installed when absent. `trial` is the code it must run.

    Blocks, for many minutes. Safe to repeat and to interrupt: pip goes on where it was, the stamp
    comes last. `engines/NAME` then leads to it, which is where profiles look. EmbeddedError with
    the end of pip's log when it fails.
    """
    folder = engine_folder(cache_dir, requirement)
    python = folder / "bin" / "python"
    with sole_builder(folder, echo):
        if not (folder / STAMP).exists():
            _build(folder, python, requirement, trial, echo)
        _lead(cache_dir / "engines" / requirement.partition("=")[0], folder)
    return python


def installed(cache_dir: Path, requirement: str) -> bool:
    """Whether nothing is left to do."""
    return (engine_folder(cache_dir, requirement) / STAMP).exists()


def _build(folder: Path, python: Path, requirement: str, trial: str, echo: Echo) -> None:
    log_file = folder.with_name(folder.name + ".log")
    log_file.unlink(missing_ok=True)
    venv = [sys.executable, "-m", "venv", str(folder)]
    install_it = [*(str(python), "-m", "pip", "install", "--no-input"), requirement]
    run_step("new virtual environment", venv, log_file, echo)
    run_step(requirement, install_it, log_file, echo)
    run_step("trial import", [str(python), "-c", trial], log_file, echo)
    stamp = {"requirement": requirement, "python": sys.version}
    (folder / STAMP).write_text(json.dumps(stamp, indent=1))


def _lead(link: Path, folder: Path) -> None:
    """A link that is replaced in one step; a folder that somebody made there stays."""
    if link.exists() and not link.is_symlink():
        return
    fresh = link.with_name(f".{link.name}-{os.getpid()}")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(folder.name)
    fresh.replace(link)
