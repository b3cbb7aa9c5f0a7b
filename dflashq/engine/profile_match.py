"""Whether the server that answers is the one that the profile describes."""

from __future__ import annotations

import re
from typing import Any

from dflashq.core.errors import EngineError, EngineMismatchError
from dflashq.engine.profiles import Profile, Range, Scalar

_ABSENT = object()


def check_server(profile: Profile, server_info: dict[str, Any]) -> None:
    """Compare the server's report with the profile; EngineMismatchError lists every difference."""
    differences = [
        f"  {key}: wanted {_describe(wanted)}, found {_show(value)}{_advice(profile, key, wanted)}"
        for key, wanted in profile.expectations().items()
        if not _agrees(wanted, value := lookup(server_info, key))
    ]
    if differences:
        raise EngineMismatchError(
            f"the engine is not the one that profile {profile.name!r} describes; "
            "no prompt was sent to it:\n" + "\n".join(differences)
        )


def lookup(report: Any, path: str) -> Any:
    """The value at a dotted path (`internal_states.0.dp_size`); a sentinel where there is none."""
    for step in path.split("."):
        if isinstance(report, dict):
            report = report.get(step, _ABSENT)
        elif isinstance(report, list) and step.isdigit() and int(step) < len(report):
            report = report[int(step)]
        else:
            return _ABSENT
    return report


def effective_running_limit(server_info: dict[str, Any]) -> int:
    """How many requests the engine runs at once; EngineError when it does not report that.

    What its memory allows is taken first, for it may be less than what was configured.
    """
    for path in ("internal_states.0.effective_max_running_requests_per_dp", "max_running_requests"):
        value = lookup(server_info, path)
        if type(value) is int and value > 0:
            return value
    raise EngineError("the engine's /server_info names no running-request limit.")


def running_limit(profile: Profile, server_info: dict[str, Any]) -> int:
    """`effective_running_limit`, or the profile's `[concurrency] limit` where none is reported.

    EngineError when there is neither.
    """
    try:
        return effective_running_limit(server_info)
    except EngineError:
        if profile.concurrency.limit is None:
            raise EngineError(
                "the engine does not report how many requests it runs at once, so profile "
                f"{profile.name!r} has to: set limit in its [concurrency]."
            ) from None
        return profile.concurrency.limit


def _agrees(wanted: Scalar | Range, value: Any) -> bool:
    if not isinstance(wanted, Range):
        # In Python True == 1, but a switch is no number.
        return isinstance(value, bool) == isinstance(wanted, bool) and bool(value == wanted)
    low, high = wanted.min, wanted.max
    return (low is None or _within(low, value, upper=False)) and (
        high is None or _within(high, value, upper=True)
    )


def _within(bound: float | str, value: Any, *, upper: bool) -> bool:
    if isinstance(bound, str):
        if not isinstance(value, str):
            return False
        limit, version = _version(bound), _version(value)
        return version[: len(limit)] <= limit if upper else version >= limit
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return value <= bound if upper else value >= bound


def _version(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text.partition("+")[0])[:4]]


def _describe(wanted: Scalar | Range) -> str:
    if not isinstance(wanted, Range):
        return repr(wanted)
    parts = [f"at least {wanted.min}"] if wanted.min is not None else []
    parts += [f"at most {wanted.max}"] if wanted.max is not None else []
    return " and ".join(parts)


def _show(value: Any) -> str:
    return "nothing" if value is _ABSENT else repr(value)


def _advice(profile: Profile, key: str, wanted: Scalar | Range) -> str:
    """What to change: the flag that the range names, else the key written as a flag."""
    if key == "version":
        return "; install a version in this range, or change [expect] in the profile"
    if isinstance(wanted, Range):
        return f"; add {wanted.flag}" if wanted.flag else ""
    flag = "--" + key.rpartition(".")[2].replace("_", "-")
    if wanted is False:
        return f"; remove {flag}"
    return f"; add {flag}" + ("" if wanted is True else f" {wanted}")
