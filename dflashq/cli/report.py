"""`dflashq report`: the samples of a run in numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from dflashq.cli.progress_bars import ProgressBars
from dflashq.cli.session import Session, json_option, pass_session, print_json, run_argument, say
from dflashq.cli.text_views import columns
from dflashq.core.errors import UsageError
from dflashq.core.humanize import counted

BAR = 40


@click.command()
@run_argument
@click.option("--against", metavar="RUN2", help="Compare with another run.")
@click.option(
    "--html",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write a page to this file.",
)
@json_option
@pass_session
def report(
    session: Session, run: str, against: str | None, html: Path | None, as_json: bool
) -> None:
    """Counts, lengths, verdicts, duplicates and acceptance of RUN, from S3.

    Lengths are in tokens and of accepted samples. Changes nothing.
    """
    from dflashq.blobs.s3 import Blobs  # noqa: PLC0415 - seconds that --help need not pay
    from dflashq.operations.results.report import differences, summarise  # noqa: PLC0415

    blobs = Blobs(session.settings)
    with ProgressBars() as bars:
        runs = [
            summarise(blobs, name, lambda done, of, n=name: bars(f"reading {n}", done, of))  # type: ignore[misc]
            for name in ([run] if against is None else [run, against])
        ]
    compared = differences(*runs) if len(runs) > 1 else []
    if html is not None:
        _write(html, runs, compared)
    if as_json:
        print_json(runs[0] if against is None else {"runs": runs, "compared": compared})
    elif against is None:
        click.echo("\n".join(_lines(runs[0])))
    else:
        rows = [("", run, against)] + [(what, f"{a:g}", f"{b:g}") for what, a, b in compared]
        click.echo("\n".join(columns(rows)))


def _write(
    path: Path, runs: list[dict[str, Any]], compared: list[tuple[str, float, float]]
) -> None:
    from dflashq.operations.results.report_html import page  # noqa: PLC0415

    try:
        path.write_text(page(runs, compared), encoding="utf-8")
    except OSError as exc:
        raise UsageError(f"{path} cannot be written: {exc.strerror}") from exc
    say(f"page: {path}")


def _lines(summary: dict[str, Any]) -> Iterator[str]:
    rejected = sum(summary["rejected"].values())
    yield (
        f"run {summary['run']}: {counted(summary['prompts'], 'prompt')}, "
        f"{summary['accepted']:,} accepted, {rejected:,} rejected"
    )
    if summary["missing"]:
        first = summary["missing"][0]
        yield f"not committed yet: {counted(len(summary['missing']), 'batch')} (the first: {first})"
    yield from _table("rejected", summary["rejected"])
    yield from _table("finish reason", summary["finish_reasons"])
    yield ""
    yield from columns(
        [("tokens", "mean", "median", "P90", "P99", "max", "in all"), *_lengths(summary)]
    )
    for name, lengths in summary["lengths"].items():
        yield ""
        yield f"{name}:"
        yield from bars(lengths["histogram"])
    yield ""
    yield from _groups("domain", summary["domains"])
    yield from _groups("source", summary["sources"])
    yield from _sentences(summary)


def _lengths(summary: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, lengths in summary["lengths"].items():
        numbers = (
            lengths["median"],
            lengths["p90"],
            lengths["p99"],
            lengths["max"],
            lengths["total"],
        )
        yield (name, f"{lengths['mean']:,.1f}", *(f"{number:,}" for number in numbers))


def _table(what: str, counts: dict[str, int]) -> list[str]:
    return (
        [f"{what}: " + ", ".join(f"{name} {n:,}" for name, n in counts.items())] if counts else []
    )


def _groups(what: str, groups: dict[str, Any]) -> list[str]:
    head = (what, "accepted", "rejected", "output tokens", "mean", "median")
    rows = [
        (
            name or "(none)",
            f"{group['accepted']:,}",
            f"{group['rejected']:,}",
            f"{group['output_tokens']:,}",
            f"{group['mean_output']:,.1f}",
            f"{group['median_output']:,}",
        )
        for name, group in groups.items()
    ]
    return [*columns([head, *rows]), ""]


def _sentences(summary: dict[str, Any]) -> Iterator[str]:
    common = summary["commonest_output"]
    yield (
        f"the commonest output length is {common['length']:,} tokens: {common['share']:.1%} of "
        "generations"
    )
    for key, what in (("repeated_outputs", "outputs, id for id"), ("repeated_answers", "answers")):
        texts = summary[key]
        yield f"came before: {texts['repeated']:,} {what} ({texts['share']:.2%})"
    for repeated in summary["repeated_answers"]["most"]:
        yield f"  {repeated['times']:,} times: {repeated['text']!r}"
    if summary["accept_length"]:
        yield f"accept length {summary['accept_length']:.2f} tokens a step"


def bars(histogram: list[list[int]]) -> list[str]:
    """A histogram as lines: range, bar, count."""
    top = max((count for _, _, count in histogram), default=0)
    rows = [
        (f"{first:,}-{last:,}", "█" * round(BAR * count / top) if count else "", f"{count:,}")
        for first, last, count in histogram
    ]
    width = max((len(row[0]) for row in rows), default=0)
    return [f"  {label:>{width}}  {bar}{' ' if bar else ''}{count}" for label, bar, count in rows]
