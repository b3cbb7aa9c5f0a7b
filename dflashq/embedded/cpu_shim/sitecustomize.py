"""Lets torchvision be imported where its compiled operators do not load.

A torchvision wheel made for CUDA cannot load its operators next to a CPU build of PyTorch, and
then stumbles over the shape functions that it registers for two of them. When, and only when,
these are missing at that moment, their signatures are declared without any implementation.
Python runs this file at start, in SGLang's child processes as well.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType

_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_declared: list[object] = []  # a library's declarations vanish with the object


class _DeclareMissingOperators(MetaPathFinder):
    """Finds no module; acts when torchvision has tried its operators and is about to use them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        if fullname == "torchvision._meta_registrations":
            import torch  # noqa: PLC0415

            missing = [n for n in ("nms", "qnms") if not hasattr(torch.ops.torchvision, n)]
            library = torch.library.Library("torchvision", "FRAGMENT")
            for name in missing:
                library.define(name + _SIGNATURE)
            _declared.append(library)


sys.meta_path.insert(0, _DeclareMissingOperators())
