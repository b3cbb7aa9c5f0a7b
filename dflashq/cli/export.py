"""`dflashq export`: a run's samples in the form that a trainer reads."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict

import click

from dflashq.cli.progress_bars import ProgressBars
from dflashq.cli.session import Session, answer, json_option, pass_session, run_argument
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
    ids with everything on their origin. The same command again goes on where it stopped, or
    checks what is there; other options under the same --out are refused.
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
        done = write(Blobs(session.settings), target, request, bars)
    if as_json:
        answer(asdict(done))
    else:
        click.echo("\n".join(_lines(done)))


def _lines(done: ExportResult) -> Iterator[str]:
    if done.again:
        yield "everything was there already, and every sha256 is right"
    yield f"{counted(len(done.shards), 'shard')} in {done.target}, listed in export.json"
    yield (
        f"{counted(done.rows, 'row')}, {done.tokens:,} tokens, {done.supervised:,} of them "
        "supervised"
    )
    for domain, found in done.domains.items():
        rows = counted(found["rows"], "row")
        yield f"  {domain or '(no domain)'}: {rows}, {found['supervised']:,}"
    if done.dropped or done.cut:
        yield f"too long: {done.dropped:,} dropped, {done.cut:,} cut"
    if done.short:
        yield f"kept with fewer supervised tokens than the floor: {counted(done.short, 'row')}"
    for row in done.mix:
        share = row["chosen"] / done.supervised if done.supervised else 0
        lack = f", SHORT by {row['short']:,}" if row["short"] else ""
        yield (
            f"mix: {row['domain']}: {share:.1%}, {row['chosen']:,} of {row['available']:,} tokens, "
            f"quota {row['quota']:,}{lack}"
        )
    if done.mix:
        yield f"mix: {done.scarcest} is the domain that limits the others"
    for domain, left in done.left_out.items():
        yield f"mix: {domain or '(no domain)'} has no share: {counted(left, 'row')} left out"
    if done.missing:
        yield f"{counted(len(done.missing), 'batch')} not committed yet, so not in it"
