"""`dflashq checks`: the reasons for a rejection, and the thresholds behind them."""

from __future__ import annotations

from collections.abc import Iterator

import click

from dflashq.cli.session import (
    Session,
    json_option,
    optional_run_argument,
    pass_session,
    print_json,
)
from dflashq.core.generations.checks import REASONS
from dflashq.core.model import Checks, Guard


@click.command()
@optional_run_argument
@json_option
@pass_session
def checks(session: Session, run: str | None, as_json: bool) -> None:
    """Show the reasons for a rejection and the thresholds: the defaults, or those of RUN."""
    thresholds, guard = Checks(), Guard()
    if run is not None:
        from dflashq.blobs.runs import read_run  # noqa: PLC0415 - seconds that the defaults save
        from dflashq.blobs.s3 import Blobs  # noqa: PLC0415

        spec = read_run(Blobs(session.settings), run).spec
        thresholds, guard = spec.checks, spec.guard
    if as_json:
        print_json(
            {"reasons": REASONS, "checks": thresholds.model_dump(), "guard": guard.model_dump()}
        )
        return
    click.echo("\n".join(_lines(thresholds, guard)))


def _lines(thresholds: Checks, guard: Guard) -> Iterator[str]:
    yield "A generation is rejected, by its token ids alone, as"
    yield from (f"  {reason:<14}{meaning}" for reason, meaning in REASONS.items())
    for title, part in (("Thresholds", thresholds), ("A run stops itself", guard)):
        yield f"{title}:"
        yield from (f"  {name} = {value}" for name, value in part.model_dump().items())
