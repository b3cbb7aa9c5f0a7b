"""Progress on stderr: bars on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Self

from dflashq.cli.session import say

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

PLAIN_EVERY_S = 5.0


class ProgressBars:
    """Context manager that shows progress.

    An instance is called as `bars(what, done, of)`, with `of` 0 when it is unknown.
    """

    def __init__(self) -> None:
        self._rich: Progress | None = _rich_progress() if sys.stderr.isatty() else None
        self._lines: dict[str, TaskID] = {}
        self._printed = time.monotonic()

    def __enter__(self) -> Self:
        if self._rich is not None:
            self._rich.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Remove the bars, so that what is printed next stands alone. Safe to repeat."""
        if self._rich is not None:
            self._rich.stop()

    def __call__(self, what: str, done: int, of: int) -> None:
        if self._rich is None:
            self._plain(what, done, of)
            return
        if what not in self._lines:
            self._lines[what] = self._rich.add_task(what, total=of or None)
        self._rich.update(self._lines[what], completed=done, total=of or None)

    def _plain(self, what: str, done: int, of: int) -> None:
        now = time.monotonic()
        if now - self._printed >= PLAIN_EVERY_S:
            self._printed = now
            say(f"{what}: {done:,}" + (f" of {of:,}" if of else ""))


def _rich_progress() -> Progress:
    from rich.console import Console  # noqa: PLC0415 - a terminal alone needs it
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True))
