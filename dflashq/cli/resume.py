"""`dflashq resume`: a paused run goes on."""

from __future__ import annotations

import click

from dflashq.blobs.s3 import Blobs
from dflashq.cli.session import Session, answer, json_option, pass_session, run_argument
from dflashq.ledger import Hints, Ledger
from dflashq.operations import control


@click.command()
@run_argument
@click.option("--accept", is_flag=True, help="Take the rejections as they are; it is recorded.")
@json_option
@pass_session
def resume(session: Session, run: str, accept: bool, as_json: bool) -> None:
    """Go on with RUN where it was: its pending batches are hinted again.

    A run that paused itself pauses again unless its cause is gone, or you --accept it.
    """
    settings = session.settings
    state = control.resume(Ledger(settings), Blobs(settings), Hints(settings), run, accept=accept)
    if as_json:
        answer({"run": run, "state": state})
    else:
        click.echo(f"run {run} goes on: dflashq watch {run}")
