"""What nvidia-smi says of this host's GPUs."""

from __future__ import annotations

import shutil

from dflashq.core.errors import DflashqError
from dflashq.system.commands import run_tool

TIMEOUT_S = 20.0
_PROGRAM = "nvidia-smi"


def query(fields: str, *, of: str = "gpu", gpu: str = "") -> list[list[str]]:
    """The values of `fields`, a row for each GPU (or each of what `of` names), without units.

    `gpu`, an index or a UUID, asks of that one alone. No rows on a host without a driver;
    DflashqError when the driver does not answer. Blocks, `TIMEOUT_S` at most.
    """
    if shutil.which(_PROGRAM) is None:
        return []
    chosen = ["-i", gpu] if gpu else []
    command = [_PROGRAM, *chosen, f"--query-{of}={fields}", "--format=csv,noheader,nounits"]
    try:
        text = run_tool(command, {}, TIMEOUT_S, "asking the GPU driver")
    except DflashqError as exc:
        raise DflashqError(f"{exc}: look at the driver") from None
    return [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line]


def value(field: str, gpu: str) -> str:
    """One field of one GPU; "" where it cannot be told. Blocks."""
    try:
        rows = query(field, gpu=gpu)
    except DflashqError:
        return ""
    return rows[0][0] if len(rows) == 1 else ""


def report() -> str:
    """What nvidia-smi prints by itself: driver and CUDA versions. DflashqError without it."""
    return run_tool([_PROGRAM], {}, TIMEOUT_S, "asking the driver")


def topology() -> str:
    """How the GPUs are connected. DflashqError without a driver."""
    return run_tool([_PROGRAM, "topo", "-m"], {}, TIMEOUT_S, "asking for the topology")
