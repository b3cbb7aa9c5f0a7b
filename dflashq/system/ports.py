"""Free TCP ports.

A port that is free now can be taken a moment later: whoever starts a server on it must still
notice that the server did not come up.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Iterable, Sequence

from dflashq.core.errors import DflashqError

LOOPBACK = "127.0.0.1"
EVERYWHERE = "0.0.0.0"  # noqa: S104 - asked for, not listened on
# Linux gives the ports from 32768 up to outgoing connections: one of those, even one that is
# closed already, would keep a server from its port for a minute.
LOWEST, EPHEMERAL = 11_000, 32_768
_TRIES = 500


class NoFreePortError(DflashqError):
    """None of the ports that were tried is free; nothing was started."""


def port_is_free(port: int, host: str = LOOPBACK) -> bool:
    """True when a server could listen on `host`:`port` now. Does not block."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do it: a port in TIME_WAIT counts as free, a listening one does not.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError:
            return False
        return True


def free_port(
    offsets: Sequence[int] = (0,),
    *,
    host: str = LOOPBACK,
    but: frozenset[int] = frozenset(),
    candidates: Iterable[int] | None = None,
) -> int:
    """A port P such that P + offset is free for every one of `offsets` (none negative).

    `but` are ports to leave alone; `candidates` are tried in their order, else random ones. Raises
    NoFreePortError when none of them, or of 500 random ones, is free. Does not block.
    """
    highest = EPHEMERAL - max(offsets)
    tried = candidates or (random.randrange(LOWEST, highest) for _ in range(_TRIES))
    for port in tried:
        if port not in but and all(port_is_free(port + offset, host) for offset in offsets):
            return port
    raise NoFreePortError(
        f"no free TCP port on {host} was found below {EPHEMERAL}; nothing was started. Stop "
        "servers that are no longer needed and try again."
    )
