"""`dflashq reconcile`: make the ledger agree with S3."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import click

from dflashq.cli.progress_bars import ProgressBars
from dflashq.cli.session import Session, json_option, pass_session, print_json, run_argument
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
        result = rebuild(
            Ledger(settings),
            Blobs(settings),
            Hints(settings),
            run,
            quarantine=quarantine,
            progress=lambda done, of: bars("reading S3", done, of),
        )
    if as_json:
        print_json(asdict(result))
    else:
        click.echo("\n".join(_lines(result)))
    if result.conflicts:
        raise SystemExit(1)


def _lines(result: ReconcileResult) -> Iterator[str]:
    if not result.known:
        yield f"the ledger did not know run {result.run}: it does now ({result.state})"
    yield f"{counted(len(result.adopted), 'batch')} entered the done-set from S3"
    if result.forgotten:
        yield f"without an object, pending again: {', '.join(result.forgotten)}"
    yield f"{counted(result.added, 'batch')} put back to work"
    for batch, where in result.quarantined.items():
        yield f"{batch}: its foreign object is now {where}; the batch runs again"
    for batch, why in result.conflicts.items():
        yield f"{batch}: {why} (move it aside with --quarantine)"
