"""`dflashq resume`: a paused run goes on."""

from __future__ import annotations

import click

from dflashq.blobs.s3 import Blobs
from dflashq.cli.session import Session, answer, json_option, pass_session, run_argument
from dflashq.ledger import Hints, Ledger
from dflashq.operations import control


@click.command()
@run_argument
@json_option
@pass_session
def resume(session: Session, run: str, as_json: bool) -> None:
    """Go on with RUN where it was: its pending batches are hinted again."""
    settings = session.settings
    state = control.resume(Ledger(settings), Blobs(settings), Hints(settings), run)
    if as_json:
        answer({"run": run, "state": state})
    else:
        click.echo(f"run {run} goes on: dflashq watch {run}")
