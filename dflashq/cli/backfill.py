"""`dflashq backfill`: run again what failed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import click

from dflashq.blobs.s3 import Blobs
from dflashq.cli.session import Session, json_option, pass_session, print_json, run_argument
from dflashq.core.humanize import counted
from dflashq.core.states import RunState
from dflashq.ledger import Hints, Ledger
from dflashq.operations.runs.backfill import BackfillResult, rerun_rejected, revive

SHOWN = 20


@click.command()
@run_argument
@click.option(
    "--rejected",
    is_flag=False,
    flag_value="",
    metavar="[REASON]",
    help="Run rejected prompts again, all or those of one reason, instead of dead batches.",
)
@json_option
@pass_session
def backfill(session: Session, run: str, rejected: str | None, as_json: bool) -> None:
    """Revive the dead batches of RUN under their own name.

    With --rejected, run its rejected prompts again, as a revision of their batch: the new row takes
    the place of the rejected one. Safe to repeat.
    """
    settings = session.settings
    session.interrupted = f"What was put back stays: dflashq backfill {run} goes on with the rest."
    ledger, hints = Ledger(settings), Hints(settings)
    if rejected is None:
        result = revive(ledger, hints, run)
    else:
        result = rerun_rejected(ledger, Blobs(settings), hints, run, rejected or None)
    if as_json:
        print_json({"run": run, **asdict(result), "prompts": result.prompts})
    else:
        click.echo("\n".join(_lines(result, run, rejected)))
        if result.state == RunState.PAUSED:
            click.echo(f"run {run} is paused, nothing of it begins before: dflashq resume {run}")


def _lines(result: BackfillResult, run: str, rejected: str | None) -> Iterator[str]:
    if rejected is None:
        yield from _some(f"revived {batch}" for batch in result.revived)
        yield f"run {run}: {counted(len(result.revived), 'dead batch')} put back to work"
        return
    yield from _some(
        f"{batch}: {counted(count, 'prompt')}" for batch, count in result.revisions.items()
    )
    which = counted(result.prompts, "rejected prompt") + (f" ({rejected})" if rejected else "")
    yield f"run {run}: {which} put back to work in {counted(len(result.revisions), 'revision')}"


def _some(rows: Iterator[str]) -> Iterator[str]:
    lines = list(rows)
    yield from lines[:SHOWN]
    if len(lines) > SHOWN:
        yield f"and {len(lines) - SHOWN:,} more (--json)"
