"""How long a test waits for what must come: one bound for all, and no test chooses its own."""

from __future__ import annotations

import time
from collections.abc import Callable

# Only a test that fails waits so long. A starved process on a shared machine takes many times
# what it takes alone, so a bound near the usual time tells of the machine and not of the code.
WAIT_S = 180.0
_POLL_S = 0.02


def wait_until(
    condition: Callable[[], bool], what: str = "the condition is true", timeout_s: float = WAIT_S
) -> None:
    """Block until `condition` is true; AssertionError naming `what` after `timeout_s`.

    `timeout_s` is for what is no test: benchmarks, rehearsals and chaos.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(_POLL_S)
