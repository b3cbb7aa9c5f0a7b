"""`python -m dflashq.embedded.prepare [engine] [smollm2]`: build both ahead of their first use."""

from __future__ import annotations

from pathlib import Path

import click

from dflashq import config
from dflashq.core.errors import DflashqError
from dflashq.embedded.cached_build import Echo
from dflashq.embedded.cpu_engine import ensure_engine, ensure_smollm2

PARTS = {"engine": ensure_engine, "smollm2": ensure_smollm2}


@click.command()
@click.argument("parts", nargs=-1, type=click.Choice(list(PARTS)))
def main(parts: tuple[str, ...]) -> None:
    """Build PARTS (all when none is named) into the cache and print where they are."""
    try:
        settings = config.load()
        for part in parts or PARTS:
            click.echo(f"{part}: {_ensure(part, settings.cache_dir, _progress)}")
    except DflashqError as exc:
        click.echo(str(exc), err=True)
        raise SystemExit(exc.exit_code) from None


def _ensure(part: str, cache_dir: Path, echo: Echo) -> Path:
    return PARTS[part](cache_dir, echo)


def _progress(line: str) -> None:
    """Progress goes to stderr, so that stdout holds only the paths."""
    click.echo(line, err=True)


if __name__ == "__main__":
    main()
