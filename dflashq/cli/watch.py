"""`dflashq watch`: show a run until it is finished."""

from __future__ import annotations

import sys
import time

import click

from dflashq.cli import text_views
from dflashq.cli.session import Session, pass_session, run_argument, say
from dflashq.core.errors import LedgerUnreachableError
from dflashq.core.estimates.rate import RateWindow
from dflashq.core.states import RunState
from dflashq.ledger import Ledger

FRAME_S, LINE_S = 1.5, 5.0
SPEED_OVER_S, SPEED_FROM_S = 60.0, 15.0


@click.command()
@run_argument
@click.option("--once", is_flag=True, help="Show it once and end.")
@pass_session
def watch(session: Session, run: str, once: bool) -> None:
    """Show RUN until it is finished. Exit code 1 when batches are dead or it was cancelled."""
    session.interrupted = f"The run goes on: dflashq watch {run}"
    ledger = Ledger(session.settings)
    if once:
        details = text_views.read_details(ledger, run)
        click.echo("\n".join(text_views.run_lines(details)))
    elif sys.stdout.isatty():
        details = _live(ledger, run)
    else:
        details = _plain(ledger, run)
    if details.status.dead or details.view.state == RunState.CANCELLED:
        raise SystemExit(1)


class _Watcher:
    """Reads a run again and again, measuring the speed of its workers over a minute."""

    def __init__(self, ledger: Ledger, run: str) -> None:
        self._ledger, self._run = ledger, run
        self._windows: dict[str, RateWindow] = {}

    def poll(self) -> text_views.RunDetails:
        """The run as it is now. Blocks on Redis. UnknownRunError, LedgerError."""
        details = text_views.read_details(self._ledger, self._run)
        now, speed = time.monotonic(), 0.0
        for worker in details.workers:
            window = self._windows.setdefault(worker.name, RateWindow(SPEED_OVER_S, SPEED_FROM_S))
            window.add(now, worker.output_tokens)
            if worker.alive and worker.works_on(self._run):
                measured = window.per_s()
                speed += worker.tokens_per_s if measured is None else measured
        return details.measured(speed)


def _live(ledger: Ledger, run: str) -> text_views.RunDetails:
    from rich.live import Live  # noqa: PLC0415 - a terminal alone needs it
    from rich.text import Text  # noqa: PLC0415

    watcher = _Watcher(ledger, run)
    details = watcher.poll()
    with Live(auto_refresh=False) as screen:
        while True:
            screen.update(Text("\n".join(text_views.run_lines(details))), refresh=True)
            if details.view.finished:
                return details
            time.sleep(FRAME_S)
            try:
                details = watcher.poll()
            except LedgerUnreachableError as exc:
                screen.update(Text(f"{exc}"), refresh=True)


def _plain(ledger: Ledger, run: str) -> text_views.RunDetails:
    watcher = _Watcher(ledger, run)
    details = watcher.poll()
    while True:
        click.echo(f"{details.view.name}: {details.view.sentence}")
        if details.view.finished:
            return details
        details = _next_line(watcher, details)


def _next_line(watcher: _Watcher, last: text_views.RunDetails) -> text_views.RunDetails:
    """The run 5 s later, or at once when it is finished."""
    details, until = last, time.monotonic() + LINE_S
    while time.monotonic() < until and not details.view.finished:
        time.sleep(0.5)
        try:
            details = watcher.poll()
        except LedgerUnreachableError as exc:
            say(str(exc))
            time.sleep(max(0.0, until - time.monotonic()))
    return details
