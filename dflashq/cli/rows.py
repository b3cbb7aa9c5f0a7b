"""`dflashq rows`: the training rows of a run, as Parquet on S3."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import click

from dflashq.cli.progress_bars import ProgressBars
from dflashq.cli.session import Session, answer, json_option, pass_session, run_argument
from dflashq.core.humanize import counted
from dflashq.operations.results.rows import RowsResult


@click.command()
@run_argument
@click.option("--hint", is_flag=True, help="Leave the work to workers started with --rows.")
@json_option
@pass_session
def rows(session: Session, run: str, hint: bool, as_json: bool) -> None:
    """Write the training rows of every committed batch of RUN that lacks them.

    Safe to repeat: what is there is not written again. With --hint, batches that are committed
    later get their rows as well, and `dflashq status RUN` counts them.
    """
    from dflashq.blobs.s3 import Blobs  # noqa: PLC0415 - seconds that --help need not pay
    from dflashq.ledger import Hints, Ledger  # noqa: PLC0415
    from dflashq.operations.results.rows import hint_rows, make_rows  # noqa: PLC0415

    blobs = Blobs(session.settings)
    session.interrupted = "What is written stands; the same command goes on."
    if hint:
        result = hint_rows(Ledger(session.settings), blobs, Hints(session.settings), run)
    else:
        with ProgressBars() as bars:
            result = make_rows(blobs, run, lambda done, of: bars("writing rows", done, of))
    if as_json:
        answer(asdict(result))
    else:
        click.echo("\n".join(_lines(result)))


def _lines(result: RowsResult) -> Iterator[str]:
    if result.hinted:
        yield f"{counted(len(result.hinted), 'batch')} hinted to the queue rows"
    else:
        yield f"{counted(result.written, 'batch')} written, {result.rows:,} rows in all"
    yield f"{counted(result.there, 'batch')} had rows before"
    if result.uncommitted:
        yield f"{counted(len(result.uncommitted), 'batch')} not committed yet"
