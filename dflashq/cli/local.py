"""`dflashq local`: Redis and S3 on this machine, for trying things and for one-machine fleets."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict

import click

from dflashq import config
from dflashq.embedded import local as servers
from dflashq.embedded.local import LocalStatus

_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for a program.")


@click.group()
def local() -> None:
    """Run Redis and S3 on this machine; their data stays over down and up."""


@local.command()
@_json_option
def up(as_json: bool) -> None:
    """Start both servers, or leave them alone when they run."""
    _show(servers.up(config.load()), as_json)


@local.command()
@_json_option
def down(as_json: bool) -> None:
    """Stop both servers; the data stays."""
    _show(servers.down(config.load()), as_json)


@local.command()
@_json_option
def status(as_json: bool) -> None:
    """Show which servers run. Exit code 1 when one is down."""
    current = servers.status(config.load())
    _show(current, as_json)
    if not all(server.running for server in current.servers):
        raise SystemExit(1)


def _show(status: LocalStatus, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(asdict(status), default=str, indent=1))
        return
    for server in status.servers:
        state = f"up at {server.address} (process {server.pid})" if server.running else "down"
        click.echo(f"{server.name}: {state}, log {server.log_file}")
    click.echo(f"data: {status.folder}")
    if all(server.running for server in status.servers):
        file = shlex.quote(str(status.env_file))
        click.echo(f"to use them in this shell: set -a; . {file}; set +a")
