"""`dflashq report`: what a run's samples are like."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from dflashq.cli.progress_bars import ProgressBars
from dflashq.cli.session import Session, answer, json_option, pass_session, run_argument, say
from dflashq.cli.text_views import columns
from dflashq.core.errors import UsageError
from dflashq.core.humanize import counted

BAR = 40


@click.command()
@run_argument
@click.option("--against", metavar="RUN2", help="Compare with another run.")
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), help="A page, too.")
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
        answer(runs[0] if against is None else {"runs": runs, "compared": compared})
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


def _lines(found: dict[str, Any]) -> Iterator[str]:
    rejected = sum(found["rejected"].values())
    yield (
        f"run {found['run']}: {counted(found['prompts'], 'prompt')}, "
        f"{found['accepted']:,} accepted, {rejected:,} rejected"
    )
    if found["missing"]:
        first = found["missing"][0]
        yield f"not committed yet: {counted(len(found['missing']), 'batch')} (the first: {first})"
    yield from _table("rejected", found["rejected"])
    yield from _table("finish reason", found["finish_reasons"])
    yield ""
    yield from columns(
        [("tokens", "mean", "median", "P90", "P99", "max", "in all"), *_lengths(found)]
    )
    for name, one in found["lengths"].items():
        yield ""
        yield f"{name}:"
        yield from bars(one["histogram"])
    yield ""
    yield from _groups("domain", found["domains"])
    yield from _groups("source", found["sources"])
    yield from _sentences(found)


def _lengths(found: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, one in found["lengths"].items():
        numbers = (one["median"], one["p90"], one["p99"], one["max"], one["total"])
        yield (name, f"{one['mean']:,.1f}", *(f"{number:,}" for number in numbers))


def _table(what: str, counts: dict[str, int]) -> list[str]:
    return (
        [f"{what}: " + ", ".join(f"{name} {n:,}" for name, n in counts.items())] if counts else []
    )


def _groups(what: str, groups: dict[str, Any]) -> list[str]:
    head = (what, "accepted", "rejected", "output tokens", "mean", "median")
    rows = [
        (
            *(name or "(none)", f"{one['accepted']:,}", f"{one['rejected']:,}"),
            *(f"{one['output_tokens']:,}", f"{one['mean_output']:,.1f}"),
            f"{one['median_output']:,}",
        )
        for name, one in groups.items()
    ]
    return [*columns([head, *rows]), ""]


def _sentences(found: dict[str, Any]) -> Iterator[str]:
    common = found["commonest_output"]
    yield (
        f"the commonest output length is {common['length']:,} tokens: {common['share']:.1%} of "
        "generations"
    )
    for key, what in (("repeated_outputs", "outputs, id for id"), ("repeated_answers", "answers")):
        one = found[key]
        yield f"came before: {one['repeated']:,} {what} ({one['share']:.2%})"
    for one in found["repeated_answers"]["most"]:
        yield f"  {one['times']:,} times: {one['text']!r}"
    if found["accept_length"]:
        yield f"accept length {found['accept_length']:.2f} tokens a step"


def bars(histogram: list[list[int]]) -> list[str]:
    """A histogram as lines: range, bar, count."""
    top = max((count for _, _, count in histogram), default=0)
    rows = [
        (f"{first:,}-{last:,}", "█" * round(BAR * count / top) if count else "", f"{count:,}")
        for first, last, count in histogram
    ]
    width = max((len(row[0]) for row in rows), default=0)
    return [f"  {label:>{width}}  {bar}{' ' if bar else ''}{count}" for label, bar, count in rows]
