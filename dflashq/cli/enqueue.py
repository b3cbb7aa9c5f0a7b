"""`dflashq enqueue`: make a run of prompt files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from dflashq.cli.intake_summary import reject_lines, summary_lines
from dflashq.cli.progress_bars import ProgressBars
from dflashq.cli.session import (
    Session,
    json_option,
    pass_session,
    print_json_with_rows,
)
from dflashq.core.humanize import counted
from dflashq.core.model import RunRecord
from dflashq.core.states import RunState
from dflashq.engine.profiles import load_profile
from dflashq.operations.runs.enqueue import EnqueueResult, check_name, run_record
from dflashq.operations.runs.spec import run_spec
from dflashq.prompts.batches import PreparedBatches, spooled

READING = "Nothing was enqueued."
SENDING = "What was uploaded stays and is used again: run the same command to go on."


def _pairs(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for text in values:
        name, sign, value = text.partition("=")
        if not sign or not value:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE, as in temperature=0.7")
        pairs[name.strip()] = value.strip()
    return pairs


@click.command()
@click.argument(
    "files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@click.option("--run", required=True, help="Name of the run; the same again continues it.")
@click.option("--profile", help="Engine profile: name or file. [DFLASHQ_PROFILE]")
@click.option("--batch-size", default=1000, show_default=True, type=click.IntRange(1, 1000))
@click.option(
    "--sampling",
    metavar="NAME=VALUE",
    multiple=True,
    callback=_pairs,
    help="Sampling parameter in place of the profile's; may be repeated.",
)
@click.option(
    "--guard",
    metavar="NAME=VALUE",
    multiple=True,
    callback=_pairs,
    help="When the run stops itself, in place of the profile's: canary, max_rejected, "
    "min_median_tokens, window; may be repeated.",
)
@click.option(
    "--retry",
    "retries",
    metavar="REASON[,...][:MAX_NEW_TOKENS]",
    multiple=True,
    help="Generate a turn that is rejected for this once more, with MAX_NEW_TOKENS if given; the "
    "row records it. May be repeated: each is one more try. None by default.",
)
@click.option("--thinking/--no-thinking", default=None, help="In place of the profile's own.")
@click.option("--limit", type=click.IntRange(1), help="Stop after this many prompts.")
@click.option(
    "--rejected",
    "rejected_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where rejected lines go. [rejected-RUN.jsonl]",
)
@click.option("--dry-run", is_flag=True, help="Read everything, send nothing.")
@json_option
@pass_session
def enqueue(
    session: Session,
    files: tuple[Path, ...],
    run: str,
    profile: str | None,
    batch_size: int,
    sampling: dict[str, str],
    guard: dict[str, str],
    retries: tuple[str, ...],
    thinking: bool | None,
    limit: int | None,
    rejected_path: Path | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Read prompt FILEs to their end, upload them in batches, and hint the workers.

    Files are JSON lines or a JSON array (ShareGPT, OpenAI messages, prompt, Alpaca), plain, gzip
    or zstd. A bad line does not stop the run: it is counted, shown and written to a file.
    """
    check_name(run)
    loaded = load_profile(
        session.settings.profile if profile is None else profile, session.settings
    )
    spec = run_spec(
        loaded,
        sampling=sampling,
        guard=guard,
        retries=retries,
        thinking=thinking,
        batch_size=batch_size,
    )
    session.interrupted = READING
    with (
        ProgressBars() as bars,
        spooled(
            files,
            rejected_path=rejected_path or Path(f"rejected-{run}.jsonl"),
            batch_size=batch_size,
            canary=spec.guard.canary,
            limit=limit,
            progress=lambda rows: bars("reading rows", rows, 0),
        ) as prepared,
    ):
        new = run_record(run, spec, prepared, datetime.now(UTC))
        done = None if dry_run else _send(session, new, prepared, bars)
        bars.stop()
        if as_json:
            _print_json(new, prepared, done)
        else:
            click.echo("\n".join(_lines(new, prepared, done)))
        if done is not None and done.state == RunState.CANCELLED:
            raise SystemExit(1)


def _send(
    session: Session, new: RunRecord, prepared: PreparedBatches, bars: ProgressBars
) -> EnqueueResult:
    # Imported here: a dry run needs neither Redis nor S3, nor the time to import their clients.
    from dflashq.blobs.s3 import Blobs  # noqa: PLC0415
    from dflashq.ledger import Hints, Ledger  # noqa: PLC0415
    from dflashq.operations.runs import enqueue as operation  # noqa: PLC0415

    session.interrupted = SENDING
    settings = session.settings
    return operation.enqueue(
        Ledger(settings), Blobs(settings), Hints(settings), new, prepared, bars
    )


def _lines(new: RunRecord, prepared: PreparedBatches, done: EnqueueResult | None) -> Iterator[str]:
    yield from summary_lines(prepared)
    yield from reject_lines(prepared)
    batches = counted(len(new.batches), "batch")
    what = f"run {new.name}: {counted(new.prompts, 'prompt')} in {batches}"
    if done is None:
        yield f"{what}; a dry run, nothing was sent"
    elif done.continued:
        yield f"{what}; it was there already, {counted(done.added, 'batch')} added"
    else:
        yield f"{what} enqueued. See how it goes: dflashq watch {new.name}"
    if done is not None and done.state != RunState.ACTIVE:
        more = (
            "nothing will run, use another name" if done.state == RunState.CANCELLED else "it waits"
        )
        yield f"run {new.name} is {done.state}: {more}. dflashq status {new.name}"


def _print_json(new: RunRecord, prepared: PreparedBatches, done: EnqueueResult | None) -> None:
    record = new if done is None else done.record
    row: dict[str, Any] = {
        "run": new.name,
        "fingerprint": record.fingerprint,
        "prompts": record.prompts,
        "batches": len(record.batches),
        "dry_run": done is None,
        "continued": done.continued if done else False,
        "added": done.added if done else 0,
        "hinted": done.hinted if done else 0,
        "state": done.state if done else None,
        "counts": {do: prepared.counts.get(do, 0) for do in ("accept", "normalise", "reject")},
        "reasons": {do: dict(counts) for do, counts in prepared.reasons.items()},
        "domains": dict(prepared.domains),
        "rejected": None if prepared.rejected_path is None else str(prepared.rejected_path),
    }
    print_json_with_rows(row, "lines", _rows(prepared))


def _rows(prepared: PreparedBatches) -> Iterator[dict[str, Any]]:
    with prepared.records_path.open(encoding="utf-8") as records:
        for line in records:
            row = json.loads(line)
            names = {name: row[name] for name in ("file", "line", "do")}
            yield names | {"why": ",".join(row["why"])}
