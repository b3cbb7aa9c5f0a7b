"""The spec of a run: an engine profile's values, with the user's own in their place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from dflashq.core.errors import UsageError
from dflashq.core.generations.checks import REASONS
from dflashq.core.model import RetryStep, RunSpec
from dflashq.engine.profiles import Profile

Part = TypeVar("Part", bound=BaseModel)


def run_spec(
    profile: Profile,
    *,
    sampling: Mapping[str, str] = {},
    thinking: bool | None = None,
    batch_size: int = 1000,
    guard: Mapping[str, str] = {},
    retries: Sequence[str] = (),
) -> RunSpec:
    """The spec of the profile; `sampling` and `guard` replace its values by name.

    Values are text, as on a command line. `retries` are the steps of the retry ladder, such as
    `truncated,looping:8192`. `thinking` None means the profile's own. UsageError names each
    parameter that is unknown or out of range.
    """
    model = profile.model
    return RunSpec(
        model=model.source or model.id,
        revision=model.revision,
        queue=profile.queue,
        thinking=model.thinking if thinking is None else thinking,
        sampling=_with_values(profile.sampling, sampling, "sampling"),
        guard=_with_values(profile.guard, guard, "guard"),
        ladder=tuple(_retry_step(text) for text in retries),
        batch_size=batch_size,
    )


def _retry_step(text: str) -> RetryStep:
    reasons, _, limit = text.partition(":")
    named = tuple(reason.strip() for reason in reasons.split(","))
    unknown = [reason for reason in named if reason not in REASONS]
    if unknown or (limit and not limit.isdigit()):
        raise UsageError(
            f"{text!r} is no retry: REASON[,REASON...][:MAX_NEW_TOKENS], as in truncated:32768. "
            f"The reasons are {', '.join(REASONS)}."
        )
    return RetryStep(reasons=named, max_new_tokens=int(limit) if limit else None)


def _with_values(default: Part, values: Mapping[str, str], what: str) -> Part:
    try:
        return type(default).model_validate({**default.model_dump(), **values})
    except ValidationError as exc:
        rows = "; ".join(
            f"{'.'.join(map(str, e['loc']))}={e['input']}: {_explanation(e)}" for e in exc.errors()
        )
        known = ", ".join(type(default).model_fields)
        raise UsageError(f"{what} is wrong: {rows}. There are: {known}.") from None


def _explanation(error: object) -> str:
    row = dict(error)  # type: ignore[call-overload]
    return "there is no such parameter" if row["type"] == "extra_forbidden" else str(row["msg"])
