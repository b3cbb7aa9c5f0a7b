"""`dflashq reconcile`: make the ledger say what S3 holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import click

from dflashq.cli.progress_bars import ProgressBars
from dflashq.cli.session import Session, answer, json_option, pass_session, run_argument
from dflashq.core.humanize import counted
from dflashq.operations.runs.reconcile import ReconcileResult


@click.command()
@run_argument
@click.option("--quarantine", is_flag=True, help="Move foreign commit objects aside, run again.")
@json_option
@pass_session
def reconcile(session: Session, run: str, quarantine: bool, as_json: bool) -> None:
    """Rebuild RUN in Redis from S3: spec, state, done-set and counters; hint what is missing.

    For a Redis that was lost or wiped, also under live workers. Safe to repeat. Exit code 1 when
    a commit object is not the run's and was left in its place.
    """
    from dflashq.blobs.s3 import Blobs  # noqa: PLC0415 - seconds that --help need not pay
    from dflashq.ledger import Hints, Ledger  # noqa: PLC0415
    from dflashq.operations.runs.reconcile import reconcile as rebuild  # noqa: PLC0415

    settings = session.settings
    with ProgressBars() as bars:
        done = rebuild(
            *(Ledger(settings), Blobs(settings), Hints(settings), run),
            quarantine=quarantine,
            progress=lambda n, of: bars("reading S3", n, of),
        )
    if as_json:
        answer(asdict(done))
    else:
        click.echo("\n".join(_lines(done)))
    if done.conflicts:
        raise SystemExit(1)


def _lines(done: ReconcileResult) -> Iterator[str]:
    if not done.known:
        yield f"the ledger did not know run {done.run}: it does now ({done.state})"
    yield f"{counted(len(done.adopted), 'batch')} entered the done-set from S3"
    if done.forgotten:
        yield f"without an object, pending again: {', '.join(done.forgotten)}"
    yield f"{counted(done.added, 'batch')} put back to work"
    for batch, where in done.quarantined.items():
        yield f"{batch}: its foreign object is now {where}; the batch runs again"
    for batch, why in done.conflicts.items():
        yield f"{batch}: {why} (move it aside with --quarantine)"
