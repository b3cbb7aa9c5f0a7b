"""The spec of a run from an engine profile, with what the user asked to be otherwise."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ValidationError

from dflashq.core.errors import UsageError
from dflashq.core.model import RunSpec, Sampling
from dflashq.engine.profiles import Profile


def run_spec(
    profile: Profile,
    *,
    sampling: Mapping[str, str] = {},
    thinking: bool | None = None,
    batch_size: int = 1000,
) -> RunSpec:
    """The profile's model, queue and sampling; `sampling` overlays it by name, values as text.

    UsageError names each sampling parameter that is unknown or out of range.
    """
    model = profile.model
    return RunSpec(
        model=model.source or model.id,
        revision=model.revision,
        queue=profile.queue,
        thinking=model.thinking if thinking is None else thinking,
        sampling=_overlaid(profile.sampling, sampling),
        batch_size=batch_size,
    )


def _overlaid(default: Sampling, asked: Mapping[str, str]) -> Sampling:
    try:
        return Sampling.model_validate({**default.model_dump(), **asked})
    except ValidationError as exc:
        rows = "; ".join(
            f"{'.'.join(map(str, e['loc']))}={e['input']}: {_words(e)}" for e in exc.errors()
        )
        known = ", ".join(Sampling.model_fields)
        raise UsageError(f"sampling is wrong: {rows}. There are: {known}.") from None


def _words(error: object) -> str:
    row = dict(error)  # type: ignore[call-overload]
    return "there is no such parameter" if row["type"] == "extra_forbidden" else str(row["msg"])
