"""`dflashq validate`: check training data from any source."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from dflashq.cli.progress_bars import ProgressBars
from dflashq.cli.report import bars as histogram
from dflashq.cli.session import json_option, print_json
from dflashq.cli.text_views import columns
from dflashq.core.humanize import counted
from dflashq.core.training_data.dataset_checks import KINDS
from dflashq.operations.results.validate import DatasetReport, read_markers
from dflashq.operations.results.validate import validate as examine


def _limits(
    _ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]
) -> dict[str, float]:
    limits = {}
    for value in values:
        kind, _, share = value.partition("=")
        try:
            limits[kind] = float(share)
        except ValueError:
            raise click.BadParameter(f"{value!r} is not KIND=SHARE, such as stub=0.02") from None
    return limits


@click.command()
@click.argument("path", metavar="FILE|DIR", type=click.Path(path_type=Path))
@click.option(
    "--tokenizer",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the tokenizer: ends and think tags of token rows are checked, too.",
)
@click.option("--min-supervised", type=click.IntRange(1), default=32, show_default=True)
@click.option(
    "--limit",
    "limits",
    multiple=True,
    callback=_limits,
    metavar="KIND=SHARE",
    help="Share of rows above which a kind fails the data: 0.01, 0.05 for repeated and "
    "same_length, 0 for bad_json and bad_ids.",
)
@json_option
def validate(
    path: Path,
    tokenizer: Path | None,
    min_supervised: int,
    limits: dict[str, float],
    as_json: bool,
) -> None:
    """Count what is wrong with token rows or conversations: JSON or JSON lines, gzip, zstd.

    Exit code 1 when the share of a kind passes its limit. Reads files alone, changes nothing.
    """
    markers = None if tokenizer is None else read_markers(tokenizer)
    with ProgressBars() as bars:
        report = examine(
            path,
            markers=markers,
            min_supervised=min_supervised,
            limits=limits,
            progress=lambda done, of: bars("reading files", done, of),
        )
    if as_json:
        print_json(report.to_json())
    else:
        click.echo("\n".join(_lines(report, with_markers=markers is not None)))
    if report.failed:
        raise SystemExit(1)


def _lines(report: DatasetReport, *, with_markers: bool) -> Iterator[str]:
    shapes = ", ".join(f"{count:,} {shape}" for shape, count in report.shapes.most_common())
    yield f"{counted(report.rows, 'row')} in {counted(len(report.files), 'file')}: {shapes}"
    rows = [
        (kind, f"{report.kinds[kind]:,}", f"{report.share(kind):.2%}", f"{report.limits[kind]:.0%}")
        for kind in KINDS
        if report.kinds[kind]
    ]
    if rows:
        yield ""
        yield from columns([("kind", "rows", "share", "limit"), *rows])
    for kind in report.failed:
        places = ", ".join(report.examples.get(kind, []))
        yield f"FAILED {kind}: {KINDS[kind]}" + (f" ({places})" if places else "")
    length, share = report.lengths.most_common()
    yield ""
    yield f"{share:.0%} of rows have a length of exactly {length:,} {report.unit}"
    yield from histogram([list(bucket) for bucket in report.lengths.histogram()])
    if report.shapes["tokens"] and not with_markers:
        yield "without --tokenizer the ends and the think tags of token rows are not checked"
    yield "failed" if report.failed else "passed: no kind is above its limit"
