"""`dflashq export`: write a run's samples in the form that a trainer reads."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict

import click

from dflashq.cli.progress_bars import ProgressBars
from dflashq.cli.session import Session, json_option, pass_session, print_json, run_argument
from dflashq.core.humanize import counted
from dflashq.operations.export.export import ExportResult

TO = ("specforge", "speculators", "conversations", "parquet")


def _mix(
    _ctx: click.Context, _param: click.Parameter, value: str | None
) -> dict[str, float] | None:
    """`coding=46,general=26`: weights by domain; they need not sum to 100."""
    if value is None:
        return None
    shares: dict[str, float] = {}
    for piece in value.split(","):
        domain, mark, weight = piece.strip().rpartition("=")
        try:
            share = float(weight)
        except ValueError:
            share = math.nan
        if not mark or domain in shares or not 0 < share < math.inf:
            raise click.BadParameter(
                f"{piece.strip()!r} is no share: coding=46,general=26,… with each domain once and "
                "a weight above 0"
            )
        shares[domain] = share
    return shares


@click.command()
@run_argument
@click.option("--to", type=click.Choice(TO), required=True, help="Who reads it.")
@click.option("--out", required=True, metavar="DIR|s3://…", help="A folder, or bucket and prefix.")
@click.option("--shard-rows", type=click.IntRange(1), default=5000, show_default=True)
@click.option("--max-length", type=click.IntRange(1), help="Longest row in tokens.")
@click.option("--over", type=click.Choice(("drop", "cut")), default="drop", show_default=True)
@click.option(
    "--floor",
    type=click.IntRange(1),
    default=32,
    show_default=True,
    help="Supervised tokens that a cut row keeps at least: two blocks of the drafter.",
)
@click.option("--pack", type=click.IntRange(1), help="Pack rows to this length (parquet).")
@click.option("--split-by", type=click.Choice(["domain"]), help="A folder for each domain.")
@click.option("--mix", callback=_mix, metavar="A=46,B=26,…", help="Shares of supervised tokens.")
@click.option("--mix-tokens", type=click.IntRange(1), help="Supervised tokens of the whole mix.")
@click.option("--seed", type=int, default=0, show_default=True, help="Which rows the mix takes.")
@click.option("--partial", is_flag=True, help="Also when the run is not finished.")
@json_option
@pass_session
def export(
    session: Session,
    run: str,
    to: str,
    out: str,
    shard_rows: int,
    max_length: int | None,
    over: str,
    floor: int,
    pack: int | None,
    split_by: str | None,
    mix: dict[str, float] | None,
    mix_tokens: int | None,
    seed: int,
    partial: bool,
    as_json: bool,
) -> None:
    """Write the accepted samples of RUN as shards under --out, with export.json beside them.

    specforge and speculators get exact ids with their mask, conversations the text, parquet the
    ids with all about their origin. The same command again goes on where it stopped, or checks
    what is there; other options under the same --out are refused.
    """
    from dflashq.blobs.s3 import Blobs  # noqa: PLC0415 - seconds that --help need not pay
    from dflashq.operations.export.export import Request  # noqa: PLC0415
    from dflashq.operations.export.export import export as write  # noqa: PLC0415
    from dflashq.operations.export.targets import open_target  # noqa: PLC0415

    request = Request(
        run=run,
        to=to,
        shard_rows=shard_rows,
        max_length=max_length,
        over=over,
        floor=floor,
        pack=pack,
        split_by_domain=split_by is not None,
        mix=mix,
        mix_tokens=mix_tokens,
        seed=seed,
        partial=partial,
    )
    session.interrupted = "Finished shards stand; the same command goes on."
    target = open_target(out, session.settings)
    with ProgressBars() as bars:
        result = write(Blobs(session.settings), target, request, bars)
    if as_json:
        print_json(asdict(result))
    else:
        click.echo("\n".join(_lines(result)))


def _lines(result: ExportResult) -> Iterator[str]:
    if result.again:
        yield "everything was there already, and every sha256 is right"
    yield f"{counted(len(result.shards), 'shard')} in {result.target}, listed in export.json"
    yield (
        f"{counted(result.rows, 'row')}, {result.tokens:,} tokens, {result.supervised:,} of them "
        "supervised"
    )
    for domain, counts in result.domains.items():
        rows = counted(counts["rows"], "row")
        yield f"  {domain or '(no domain)'}: {rows}, {counts['supervised']:,}"
    if result.dropped or result.cut:
        yield f"too long: {result.dropped:,} dropped, {result.cut:,} cut"
    if result.short:
        yield f"kept with fewer supervised tokens than the floor: {counted(result.short, 'row')}"
    for row in result.mix:
        share = row["chosen"] / result.supervised if result.supervised else 0
        lack = f", SHORT by {row['short']:,}" if row["short"] else ""
        yield (
            f"mix: {row['domain']}: {share:.1%}, {row['chosen']:,} of {row['available']:,} tokens, "
            f"quota {row['quota']:,}{lack}"
        )
    if result.mix:
        yield f"mix: {result.scarcest} is the domain that limits the others"
    for domain, rows_left in result.left_out.items():
        yield f"mix: {domain or '(no domain)'} has no share: {counted(rows_left, 'row')} left out"
    if result.missing:
        yield f"{counted(len(result.missing), 'batch')} not committed yet, so not in it"
