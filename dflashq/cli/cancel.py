"""`dflashq cancel`: end a run for good."""

from __future__ import annotations

import sys

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
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@pass_session
def cancel(session: Session, run: str, reason: str, yes: bool, as_json: bool) -> None:
    """End RUN for good. Committed batches stay on S3; unfinished work is dropped."""
    ledger = Ledger(session.settings)
    status = ledger.status(run)
    if not yes:
        _confirm(run, f"{status.done:,} of {status.batches:,} batches are done and stay")
    state = control.cancel(ledger, Blobs(session.settings), run, reason)
    if as_json:
        print_json({"run": run, "state": state, "reason": reason})
    else:
        click.echo(f"run {run} is cancelled: {status.done:,} committed batches stay on S3")


def _confirm(run: str, consequence: str) -> None:
    if not sys.stdin.isatty():
        raise click.UsageError("nobody can be asked here: add --yes to cancel for good")
    question = f"Cancel run {run} for good? {consequence}, the rest is never done"
    if not click.confirm(question, err=True):
        raise click.Abort
