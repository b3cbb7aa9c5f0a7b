"""`python -m tests.benchmarks`: every figure with its goal and verdict, and `bench.json`."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import click

from tests.benchmarks.results import Figure, conclusion, table
from tests.support.rehearsal import servers

# Each is a module of this package with a function `measure`.
PARTS = ("busy_slots", "dead_engine", "slow_engine_tail", "client", "sglang_throughput")
Measure = Callable[..., list[Figure]]


@click.command()
@click.argument("parts", nargs=-1, type=click.Choice(PARTS))
@click.option("--rounds", default=2, show_default=True, help="Interleaved rounds of every part.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("bench.json"))
def main(parts: tuple[str, ...], rounds: int, out: Path) -> None:
    """Measure PARTS (all when none is named). Exit code 1 when a goal is not reached."""
    figures: list[Figure] = []
    for part in parts or PARTS:
        click.echo(f"measuring {part} ...", err=True)
        measure: Measure = import_module(f"tests.benchmarks.{part}").measure
        with (
            tempfile.TemporaryDirectory(prefix=f"bench-{part}-") as name,
            servers(Path(name) / "servers") as settings,
        ):
            figures += measure(settings, Path(name), rounds)
        click.echo("\n".join(table(figures)), err=True)
    last_line, all_reached = conclusion(figures)
    out.write_text(json.dumps([figure.to_json() for figure in figures], indent=1) + "\n")
    click.echo("\n".join([*table(figures), f"written to {out}", last_line]))
    raise SystemExit(not all_reached)


if __name__ == "__main__":
    main()
