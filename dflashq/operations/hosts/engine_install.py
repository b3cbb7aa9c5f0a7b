"""Installs the pinned engine in an environment of its own, below the cache."""

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
    """The requirement of this version of dflashq, as `sglang==0.5.23`. DflashqError without one."""
    for line in metadata.requires("dflashq") or []:
        need, _, marker = line.partition(";")
        if re.search(rf"""extra\s*==\s*["']{EXTRA}["']""", marker):
            return need.strip()
    raise DflashqError(
        f"this installation of dflashq names no engine (extra {EXTRA!r}): install it again"
    )


def engine_folder(cache_dir: Path, requirement: str) -> Path:
    """The folder for the environment of this engine and this version of Python."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    digest = hashlib.sha256(f"{python} {requirement}".encode()).hexdigest()[:8]
    return cache_dir / "engines" / f"{requirement.replace('==', '-')}-{digest}"


def install(cache_dir: Path, requirement: str, trial: str, echo: Echo) -> Path:
    """The Python that has the engine, which is installed when absent.

    `trial` is code that this Python must run without an error. The link `engines/NAME`, where
    profiles look, then leads to it. Blocks, for many minutes. Safe to repeat and to interrupt: pip
    goes on where it was, and the stamp is written last. EmbeddedError with the end of pip's log.
    """
    folder = engine_folder(cache_dir, requirement)
    python = folder / "bin" / "python"
    with sole_builder(folder, echo):
        if not (folder / STAMP).exists():
            _build(folder, python, requirement, trial, echo)
        _point_link(cache_dir / "engines" / requirement.partition("=")[0], folder)
    return python


def installed(cache_dir: Path, requirement: str) -> bool:
    """Whether the engine is installed completely."""
    return (engine_folder(cache_dir, requirement) / STAMP).exists()


def _build(folder: Path, python: Path, requirement: str, trial: str, echo: Echo) -> None:
    log_file = folder.with_name(folder.name + ".log")
    log_file.unlink(missing_ok=True)
    venv = [sys.executable, "-m", "venv", str(folder)]
    install = [str(python), "-m", "pip", "install", "--no-input", requirement]
    run_step("new virtual environment", venv, log_file, echo)
    run_step(requirement, install, log_file, echo)
    run_step("trial import", [str(python), "-c", trial], log_file, echo)
    stamp = {"requirement": requirement, "python": sys.version}
    (folder / STAMP).write_text(json.dumps(stamp, indent=1))


def _point_link(link: Path, folder: Path) -> None:
    """Replace the link in one step; a folder that somebody made in its place stays."""
    if link.exists() and not link.is_symlink():
        return
    draft = link.with_name(f".{link.name}-{os.getpid()}")
    draft.unlink(missing_ok=True)
    draft.symlink_to(folder.name)
    draft.replace(link)
