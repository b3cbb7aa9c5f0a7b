"""`dflashq backfill`: what failed is run again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import click

from dflashq.blobs.s3 import Blobs
from dflashq.cli.session import Session, answer, json_option, pass_session, run_argument
from dflashq.core.humanize import counted
from dflashq.ledger import Hints, Ledger
from dflashq.operations.runs.backfill import BackfillResult, rerun_rejected, revive
from dflashq.operations.runs.control import PAUSED

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
    """Revive the dead batches of RUN under their own number.

    With --rejected, run its rejected prompts again as a revision of their batch: what is accepted
    then takes the place of the rejected row. Asked twice, nothing happens twice.
    """
    settings = session.settings
    session.interrupted = f"What was put back stays: dflashq backfill {run} goes on with the rest."
    ledger, hints = Ledger(settings), Hints(settings)
    if rejected is None:
        done = revive(ledger, hints, run)
    else:
        done = rerun_rejected(ledger, Blobs(settings), hints, run, rejected or None)
    if as_json:
        answer({"run": run, **asdict(done), "prompts": done.prompts})
    else:
        click.echo("\n".join(_lines(done, run, rejected)))
        if done.state == PAUSED:
            click.echo(f"run {run} is paused, nothing of it begins before: dflashq resume {run}")


def _lines(done: BackfillResult, run: str, rejected: str | None) -> Iterator[str]:
    if rejected is None:
        yield from _some(f"revived {batch}" for batch in done.revived)
        yield f"run {run}: {counted(len(done.revived), 'dead batch')} put back to work"
        return
    yield from _some(
        f"{batch}: {counted(count, 'prompt')}" for batch, count in done.revisions.items()
    )
    which = counted(done.prompts, "rejected prompt") + (f" ({rejected})" if rejected else "")
    yield f"run {run}: {which} put back to work in {counted(len(done.revisions), 'revision')}"


def _some(rows: Iterator[str]) -> Iterator[str]:
    found = list(rows)
    yield from found[:SHOWN]
    if len(found) > SHOWN:
        yield f"and {len(found) - SHOWN:,} more (--json)"
