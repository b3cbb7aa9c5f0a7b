"""`dflashq resume`: let a paused run go on."""

from __future__ import annotations

import click

from dflashq.blobs.s3 import Blobs
from dflashq.cli.session import Session, json_option, pass_session, print_json, run_argument
from dflashq.ledger import Hints, Ledger
from dflashq.operations.monitoring.insights import run_view
from dflashq.operations.monitoring.worker_view import worker_views
from dflashq.operations.runs import control


@click.command()
@run_argument
@click.option(
    "--accept",
    is_flag=True,
    help="Accept the rejections as they are, or go on without a dead canary; it is recorded.",
)
@json_option
@pass_session
def resume(session: Session, run: str, accept: bool, as_json: bool) -> None:
    """Go on with RUN where it was: its pending batches are hinted again.

    A canary that is dead is tried again. A run that paused itself pauses again unless its cause is
    gone, or you --accept it.
    """
    settings = session.settings
    ledger = Ledger(settings)
    result = control.resume(ledger, Blobs(settings), Hints(settings), run, accept=accept)
    if as_json:
        print_json({"run": run, "state": result.state, "clause": result.clause})
        return
    view = run_view(ledger.status(run), worker_views(ledger.workers()))
    click.echo(f"run {run} is active again: {result.clause}")
    click.echo(f"{view.sentence}\nSee how it goes: dflashq watch {run}")
