"""`dflashq verify`: prove from S3 alone that a run is whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import click

from dflashq.blobs.s3 import Blobs
from dflashq.cli.progress_bars import ProgressBars
from dflashq.cli.session import Session, json_option, pass_session, print_json, run_argument
from dflashq.core.humanize import counted
from dflashq.operations.results.verify import VerifyReport
from dflashq.operations.results.verify import verify as prove

SHOWN = 20


@click.command()
@run_argument
@json_option
@pass_session
def verify(session: Session, run: str, as_json: bool) -> None:
    """Read every committed object of RUN: each index exactly once, each sha256, the fingerprint.

    Exit code 1 with the list when something is missing or wrong. Changes nothing.
    """
    with ProgressBars() as bars:
        report = prove(
            Blobs(session.settings), run, lambda done, of: bars("verifying batches", done, of)
        )
    if as_json:
        print_json(asdict(report) | {"clean": report.clean})
    else:
        click.echo("\n".join(_lines(report)))
    if not report.clean:
        raise SystemExit(1)


def _lines(report: VerifyReport) -> Iterator[str]:
    yield f"run {report.run}, fingerprint {report.fingerprint}"
    yield f"{report.committed:,} of {report.batches:,} batches committed"
    rejected = ", ".join(f"{why} {count:,}" for why, count in report.rejected.items())
    yield (
        f"{counted(report.prompts, 'prompt')}: {report.accepted:,} accepted, "
        f"{sum(report.rejected.values()):,} rejected" + (f" ({rejected})" if rejected else "")
    )
    yield f"{report.output_tokens:,} output tokens"
    for title, sentences in (("wrong", report.problems), ("missing", report.missing)):
        yield from (f"{title}: {sentence}" for sentence in sentences[:SHOWN])
        if len(sentences) > SHOWN:
            yield f"and {len(sentences) - SHOWN:,} more {title} (--json)"
    if report.clean:
        yield "clean: every index exactly once, every sha256 and fingerprint right"
    else:
        yield f"not clean: {len(report.problems):,} wrong, {len(report.missing):,} missing"
