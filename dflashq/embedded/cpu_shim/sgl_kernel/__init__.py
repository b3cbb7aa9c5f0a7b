"""Takes the place of SGLang's CUDA kernel package on a machine without a GPU.

It has no kernel at all. SGLang imports names from it at start but computes with PyTorch when it
runs on the CPU; a name that is called after all raises, instead of giving a wrong result.
Submodules are absent on purpose: SGLang looks for them to find out what it can use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

__version__ = "0.4.10"  # what sglang 0.5.23 requires


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name.startswith("__"):  # the import system asks for some: they must be absent
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def absent(*_args: object, **_options: object) -> NoReturn:
        raise RuntimeError(f"{name} is a CUDA kernel of SGLang: it cannot run on a CPU")

    absent.__name__ = name
    return absent
