"""What `make demo` shows at its end: counts, keys, one sample to read, and the objects as files."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import click

from dflashq.blobs import runs
from dflashq.blobs.commits import rejected_rows
from dflashq.blobs.s3 import Blobs
from dflashq.config import Settings
from dflashq.core import codec, keys
from dflashq.ledger import Ledger


def print_summary(settings: Settings, run: str, seconds: float) -> None:
    """Print samples, rejects by reason, tokens, tokens/s, object keys, and one sample."""
    status = Ledger(settings).status(run)
    counters = status.counters
    tokens = counters.get("output_tokens", 0)
    click.echo(f"run        {run}: {status.done} of {status.batches} batches, finished")
    click.echo(f"samples    {counters.get('accepted', 0)} of {status.prompts} prompts")
    for name, count in sorted(counters.items()):
        if name.startswith("rejected_"):
            click.echo(f"rejected   {count} {name.removeprefix('rejected_')}")
    click.echo(
        f"tokens     {tokens} generated, {counters.get('prompt_tokens', 0)} in prompts, "
        f"{tokens / seconds:.1f} tokens/s over {seconds:.0f} s (the engine's start included)"
    )
    blobs = Blobs(settings)
    for key in blobs.list(keys.run_prefix(run)):
        click.echo(f"object     s3://{settings.s3_bucket}/{key}")
    _print_rejected(settings, blobs, run)
    _print_sample(blobs, run)


def _print_rejected(settings: Settings, blobs: Blobs, run: str) -> None:
    for ref in Ledger(settings).done(run).values():
        for row in rejected_rows(blobs, ref):
            click.echo(f"rejected   index {row['index']}: {row['reason']}: {row['detail']}")


def _print_sample(blobs: Blobs, run: str) -> None:
    """Print the first sample with more than one turn, or else the first sample."""
    record = runs.read_run(blobs, run)
    rows: list[dict[str, Any]] = []
    for batch in record.batches:
        body = blobs.get(keys.completions_object(run, batch.name)).body
        rows += codec.decode_rows(body)
    if not rows:
        click.echo("no sample was accepted")
        return
    row = next((r for r in rows if len(r["generations"]) > 1), rows[0])
    click.echo(f"\nsample     index {row['index']}, id {row['id']}, domain {row['domain']}")
    for message in row["messages"]:
        click.echo(f"  {message['role']:>9}: {message['content']}")
    for turn, generation in enumerate(row["generations"]):
        ids = generation["output_ids"]
        click.echo(f"  turn {turn}: {len(generation['prompt_ids'])} prompt ids, output ids {ids}")


def copy_objects(settings: Settings, run: str, folder: Path) -> None:
    """Copy the finished run's objects to files under `folder`. What was there is removed."""
    blobs = Blobs(settings)
    shutil.rmtree(folder, ignore_errors=True)
    count = 0
    for key in blobs.list(keys.run_prefix(run)):
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(blobs.get(key).body)
        count += 1
    click.echo(f"\ncopied     {count} objects to {folder.name}/")
