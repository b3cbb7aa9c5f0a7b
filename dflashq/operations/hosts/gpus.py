"""The GPUs of this host that a process may use, by index or UUID. MIG slices are refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dflashq.core.errors import ConfigError
from dflashq.system import nvidia_smi

ALL = "all"
FIELDS = "index,uuid,name,mig.mode.current"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as nvidia-smi lists it."""

    index: str
    uuid: str
    name: str
    mig: bool


def listed() -> list[Gpu]:
    """Every GPU of the host; none without a driver. DflashqError when it fails. Blocks."""
    return [Gpu(i, uuid, name, mig == "Enabled") for i, uuid, name, mig in nvidia_smi.query(FIELDS)]


def visible(gpus: Sequence[Gpu], environment: Mapping[str, str], wanted: str) -> list[Gpu]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves of `gpus` and `wanted` names ("all" or a list).

    A name is an index as nvidia-smi counts, or the beginning of a UUID. ConfigError for a name that
    is no GPU of `gpus`, that CUDA_VISIBLE_DEVICES hides, or that is cut into MIG slices.
    """
    mask = environment.get("CUDA_VISIBLE_DEVICES")
    unmasked = list(gpus) if mask is None else _named(gpus, mask, "CUDA_VISIBLE_DEVICES")
    chosen = unmasked if wanted == ALL else _named(gpus, wanted, "--gpus")
    hidden = [gpu.index for gpu in chosen if gpu not in unmasked]
    if hidden:
        raise ConfigError(f"CUDA_VISIBLE_DEVICES={mask} hides GPU {', '.join(hidden)} of --gpus")
    sliced = [gpu.index for gpu in chosen if gpu.mig]
    if sliced:
        raise ConfigError(
            f"GPU {', '.join(sliced)} is cut into MIG slices, and one engine needs a whole GPU: "
            f"switch that off with `nvidia-smi -i {sliced[0]} -mig 0`"
        )
    return chosen


def _named(gpus: Sequence[Gpu], names: str, where: str) -> list[Gpu]:
    named: list[Gpu] = []
    for name in (word.strip() for word in names.split(",")):
        if not name or name == "-1":
            break  # as CUDA does: its list ends at the first name that is no device
        if name.upper().startswith("MIG-"):
            raise ConfigError(
                f"{where} names the MIG slice {name}: an engine needs a whole GPU. Name GPUs by "
                "index or by their own UUID"
            )
        matches = [
            g for g in gpus if g.index == name or (len(name) > 4 and g.uuid.startswith(name))
        ]
        if len(matches) != 1:
            known = "; ".join(f"{g.index}: {g.name}, {g.uuid}" for g in gpus) or "none"
            raise ConfigError(f"{where} names {name!r}, which is none of this host's GPUs: {known}")
        if matches[0] not in named:
            named.append(matches[0])
    return named
