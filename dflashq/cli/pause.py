"""`dflashq pause`: let the workers hand a run's batches back."""

from __future__ import annotations

import click

from dflashq.blobs.s3 import Blobs
from dflashq.cli.session import (
    Session,
    json_option,
    pass_session,
    print_json,
    reason_option,
    run_argument,
)
from dflashq.ledger import Ledger
from dflashq.operations.runs import control


@click.command()
@run_argument
@reason_option
@json_option
@pass_session
def pause(session: Session, run: str, reason: str, as_json: bool) -> None:
    """Let the workers hand the batches of RUN back within seconds; finished work stays kept."""
    state = control.pause(Ledger(session.settings), Blobs(session.settings), run, reason)
    if as_json:
        print_json({"run": run, "state": state, "reason": reason})
    else:
        click.echo(f"run {run} is paused; go on with: dflashq resume {run}")
