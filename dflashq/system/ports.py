"""Free TCP ports on the loopback address.

A port that is free now can be taken a moment later: whoever starts a server on it must still
notice that the server did not come up.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Sequence

from dflashq.core.errors import EmbeddedError

HOST = "127.0.0.1"
# Linux gives the ports from 32768 up to outgoing connections: one of those, even one that is
# closed already, would keep a server from its port for a minute.
LOWEST, EPHEMERAL = 11_000, 32_768
_TRIES = 500


def port_is_free(port: int) -> bool:
    """True when a server could listen on 127.0.0.1:`port` now. Does not block."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do it: a port in TIME_WAIT counts as free, a listening one does not.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen(1)
        except OSError:
            return False
        return True


def free_port(offsets: Sequence[int] = (0,)) -> int:
    """A port P such that P + offset is free for every one of `offsets` (none negative).

    Raises EmbeddedError when 500 random tries found none. Does not block.
    """
    for _ in range(_TRIES):
        port = random.randrange(LOWEST, EPHEMERAL - max(offsets))
        if all(port_is_free(port + offset) for offset in offsets):
            return port
    raise EmbeddedError(
        f"no free port between {LOWEST} and {EPHEMERAL} on {HOST} after {_TRIES} tries. "
        "Stop servers that are no longer needed and try again."
    )
