"""The trainers' Python environment, built once into the cache (2 GB), apart from ours."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from pathlib import Path

from dflashq.embedded.cached_build import Echo, run_step, sole_builder

_REQUIREMENTS = Path(__file__).with_name("requirements.txt")
_DASHES = "# ----"
_COMPLETE = "dflashq-complete.json"


def _requirements() -> tuple[list[str], list[str]]:
    """(with, without their own requirements), as pip arguments."""
    above, _, below = _REQUIREMENTS.read_text().partition(_DASHES)
    first = [line for line in above.splitlines() if line and not line.startswith("#")]
    return first, [line for line in below.splitlines()[1:] if line]


def trainers_folder(cache_dir: Path) -> Path:
    """Where the environment of this version of the requirements and of Python belongs."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    recipe = "\n".join((python, *_requirements()[0], "--", *_requirements()[1]))
    return cache_dir / "engines" / f"trainers-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"


def ensure_trainers(cache_dir: Path, echo: Echo) -> Path:
    """The Python that has both trainers; built when absent. Safe to repeat and to interrupt.

    Blocks while another process builds. EmbeddedError with the end of pip's log when it fails.
    """
    folder = trainers_folder(cache_dir)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with sole_builder(folder, echo):
        if not (folder / _COMPLETE).exists():
            _build(folder, echo)
    return folder / "bin" / "python"


def _build(folder: Path, echo: Echo) -> None:
    """In place, since the scripts of a virtual environment name its path; the stamp comes last."""
    if folder.exists():
        shutil.rmtree(folder)
    log_file = folder.with_name(folder.name + ".log")
    log_file.unlink(missing_ok=True)
    first, second = _requirements()
    install = [str(folder / "bin/python"), "-m", "pip", "install", "--no-input"]
    run_step("new virtual environment", [sys.executable, "-m", "venv", str(folder)], log_file, echo)
    run_step("the trainers' requirements", [*install, *first], log_file, echo)
    run_step("SpecForge and speculators", [*install, "--no-deps", *second], log_file, echo)
    stamp = {"requirements": [*first, "--no-deps", *second], "python": sys.version}
    (folder / _COMPLETE).write_text(json.dumps(stamp, indent=1))
