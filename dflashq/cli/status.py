"""`dflashq status`: all runs and workers, or one run in detail."""

from __future__ import annotations

from dataclasses import asdict, replace

import click

from dflashq.cli import text_views
from dflashq.cli.session import (
    Session,
    json_option,
    optional_run_argument,
    pass_session,
    print_json,
)
from dflashq.ledger import Ledger
from dflashq.operations.monitoring.insights import run_view
from dflashq.operations.monitoring.worker_view import worker_views
from dflashq.operations.runs.listing import statuses


@click.command()
@optional_run_argument
@json_option
@pass_session
def status(session: Session, run: str | None, as_json: bool) -> None:
    """Show the progress of all runs and the workers; with RUN, everything on that one."""
    ledger = Ledger(session.settings)
    if run is None:
        _all(ledger, as_json)
        return
    details = text_views.read_details(ledger, run)
    if as_json:
        print_json(details.to_json())
    else:
        click.echo("\n".join(text_views.run_lines(details)))


def _all(ledger: Ledger, as_json: bool) -> None:
    workers = worker_views(ledger.workers())
    refusal = ledger.refusal()
    views = [run_view(replace(status, refusal=refusal), workers) for status in statuses(ledger)]
    if as_json:
        print_json({"runs": [v.to_json() for v in views], "workers": [asdict(w) for w in workers]})
        return
    lines = (
        text_views.runs_lines(views) if views else ["no run yet: dflashq enqueue FILE --run NAME"]
    )
    lines += ["", *text_views.workers_lines(workers)]
    lines += ["", *(f"{v.name}: {v.sentence}" for v in views)] if views else []
    click.echo("\n".join(lines))
