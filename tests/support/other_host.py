"""A worker as it were on another host: `python -m tests.support.other_host HOST ARGUMENT...`.

The arguments are those of `celery`. What tells hosts apart is told otherwise, the rest is real.
"""

from __future__ import annotations

import socket
import sys

from celery.__main__ import main

from dflashq.system import procfs


def run(host: str, arguments: list[str]) -> None:
    procfs.boot_id = lambda: host
    socket.gethostname = lambda: host
    sys.argv = ["celery", *arguments]
    main()


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2:])
