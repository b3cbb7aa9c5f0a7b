"""Is the server that answers the one that the profile describes?"""

from __future__ import annotations

import re
from typing import Any

from dflashq.core.errors import EngineError, EngineMismatchError
from dflashq.engine.profiles import Profile, Range, Scalar

_ABSENT = object()


def check_server(profile: Profile, server_info: dict[str, Any]) -> None:
    """Compare `/server_info` with the profile; EngineMismatchError lists every difference."""
    wrong = [
        f"  {key}: wanted {_words(wanted)}, found {_show(found)}{_advice(profile, key, wanted)}"
        for key, wanted in profile.expectations().items()
        if not _agrees(wanted, found := lookup(server_info, key))
    ]
    if wrong:
        raise EngineMismatchError(
            f"the engine is not the one that profile {profile.name!r} describes; "
            "no prompt was sent to it:\n" + "\n".join(wrong)
        )


def lookup(report: Any, path: str) -> Any:
    """The value at a dotted path (`internal_states.0.max_running_requests`)."""
    for step in path.split("."):
        if isinstance(report, dict):
            report = report.get(step, _ABSENT)
        elif isinstance(report, list) and step.isdigit() and int(step) < len(report):
            report = report[int(step)]
        else:
            return _ABSENT
    return report


def effective_running_limit(server_info: dict[str, Any]) -> int:
    """How many requests the engine really runs at once; EngineError when it does not say.

    The limit after memory was divided comes first: the one that was asked for may be larger.
    """
    for path in ("internal_states.0.effective_max_running_requests_per_dp", "max_running_requests"):
        value = lookup(server_info, path)
        if type(value) is int and value > 0:
            return value
    raise EngineError("the engine's /server_info names no running-request limit.")


def running_limit(profile: Profile, server_info: dict[str, Any]) -> int:
    """The same for a server of this profile: `[concurrency] limit` where the server tells none."""
    try:
        return effective_running_limit(server_info)
    except EngineError:
        if profile.concurrency.limit is None:
            raise EngineError(
                "the engine does not tell how many requests it runs at once, so profile "
                f"{profile.name!r} must: set limit in its [concurrency]."
            ) from None
        return profile.concurrency.limit


def _agrees(wanted: Scalar | Range, found: Any) -> bool:
    if not isinstance(wanted, Range):
        # In Python True == 1: a switch is not a number here.
        return isinstance(found, bool) == isinstance(wanted, bool) and bool(found == wanted)
    low, high = wanted.min, wanted.max
    return (low is None or _within(low, found, upper=False)) and (
        high is None or _within(high, found, upper=True)
    )


def _within(bound: float | str, found: Any, *, upper: bool) -> bool:
    if isinstance(bound, str):
        if not isinstance(found, str):
            return False
        limit = _version(bound)
        value = _version(found)
        return value[: len(limit)] <= limit if upper else value >= limit
    if isinstance(found, bool) or not isinstance(found, int | float):
        return False
    return found <= bound if upper else found >= bound


def _version(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text.partition("+")[0])[:4]]


def _words(wanted: Scalar | Range) -> str:
    if not isinstance(wanted, Range):
        return repr(wanted)
    parts = [f"at least {wanted.min}"] if wanted.min is not None else []
    parts += [f"at most {wanted.max}"] if wanted.max is not None else []
    return " and ".join(parts)


def _show(found: Any) -> str:
    return "nothing" if found is _ABSENT else repr(found)


def _advice(profile: Profile, key: str, wanted: Scalar | Range) -> str:
    """The flag that would set it: named by the bounds, the recipe, or by its own spelling."""
    if key == "version":
        return "; install a version in this range, or change [expect] in the profile"
    if isinstance(wanted, Range):
        return f"; add {wanted.flag}" if wanted.flag else ""
    flag = "--" + key.rpartition(".")[2].replace("_", "-")
    if wanted is False:
        return f"; remove {flag}"
    return f"; add {flag}" + ("" if wanted is True else f" {wanted}")
