"""`dflashq monitor`: a web page on all runs and workers."""

from __future__ import annotations

from pathlib import Path

import click

from dflashq.blobs.s3 import Blobs
from dflashq.cli.session import Session, pass_session, say
from dflashq.core.errors import UsageError
from dflashq.ledger import Hints, Ledger
from dflashq.operations.hosts import resource_needs
from dflashq.operations.monitoring.actions import RunActions
from dflashq.operations.monitoring.poller import LedgerPoller
from dflashq.operations.monitoring.prometheus import render
from dflashq.operations.monitoring.sample_cache import SampleCache

MISSING = "the monitor needs Flask and waitress: pip install 'dflashq[monitor]'"


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8787, show_default=True, type=click.IntRange(1, 65535))
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Read DFLASHQ_MONITOR_TOKEN from this file.",
)
@pass_session
def monitor(session: Session, host: str, port: int, token_file: Path | None) -> None:
    """Serve a page and a JSON API on all runs and workers, until it is stopped.

    Anywhere but on this host it needs a token: DFLASHQ_MONITOR_TOKEN or --token-file. Stopping it
    changes nothing; what it records is in Redis.
    """
    from pydantic import SecretStr  # noqa: PLC0415 - the other commands do not need it

    try:
        from dflashq.web.app import THREADS, create_app, serve  # noqa: PLC0415 - an extra
        from dflashq.web.auth import Tokens, refuse_open_network  # noqa: PLC0415
        from dflashq.web.context import MonitorContext  # noqa: PLC0415
    except ImportError as exc:
        raise UsageError(f"{MISSING} ({exc})") from exc

    settings = session.settings
    session.interrupted = "The runs go on."
    session.log_outages()
    setting = settings.monitor_token if token_file is None else SecretStr(token_file.read_text())
    tokens = Tokens(setting)
    refuse_open_network(host, tokens)
    resource_needs.ensure(resource_needs.monitor_need(THREADS), "the monitor")
    ledger, blobs, hints = Ledger(settings), Blobs(settings), Hints(settings)
    poller = LedgerPoller(settings, ledger, blobs)
    actions = RunActions(ledger, blobs, hints, poller.store)
    context = MonitorContext(poller, SampleCache(blobs), actions, lambda: render(ledger))
    address = f"[{host}]" if ":" in host else host

    def ready() -> None:
        say(f"the monitor is at http://{address}:{port}/ (stop it with Ctrl-C; the runs go on)")

    try:
        serve(create_app(context, tokens), host, port, context, ready)
    except OSError as exc:
        raise UsageError(f"the monitor cannot listen on {address}:{port}: {exc.strerror}") from exc
