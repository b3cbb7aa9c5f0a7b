"""What the commands share: settings, output to stdout and stderr, common options."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from dflashq.config import Settings

Command = TypeVar("Command", bound=Callable[..., Any])
_OUTAGES = "dflashq.ledger.outage"
NOTHING_CHANGED = "Nothing was changed."


@dataclass
class Session:
    """One call of `dflashq`. `interrupted` is what Ctrl-C prints: what stands, and what to do."""

    debug: bool = False
    verbose: int = 0
    interrupted: str = NOTHING_CHANGED

    @cached_property
    def settings(self) -> Settings:
        """The settings, read at the first use; ConfigError names what is wrong."""
        from dflashq import config  # noqa: PLC0415 - `--help` reads none

        return config.load()

    def start_logging(self) -> None:
        """Log warnings to stderr; with -v what dflashq does, with -vv also its libraries."""
        logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
        logging.getLogger().setLevel(logging.DEBUG if self.verbose > 1 else logging.WARNING)
        if not self.verbose:
            # A command that fails for an outage says so itself, in the sentence that it ends with.
            logging.getLogger(_OUTAGES).setLevel(logging.CRITICAL)
        if self.verbose == 1:
            logging.getLogger("dflashq").setLevel(logging.INFO)

    def log_outages(self) -> None:
        """Log outages of Redis as they come: for a command that goes on through them."""
        logging.getLogger(_OUTAGES).setLevel(logging.NOTSET)


pass_session = click.make_pass_decorator(Session, ensure=True)


def json_option(command: Command) -> Command:
    """`--json`: one object on stdout, everything else on stderr."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(command)


def reason_option(command: Command) -> Command:
    """`--reason`: a sentence that `status` shows beside the run's state."""
    return click.option("--reason", default="", help="Why; shown by status.")(command)


def run_argument(command: Command) -> Command:
    """The RUN of most commands; a usage error for a name that no run can have."""
    return click.argument("run", metavar="RUN", callback=_run_name)(command)


def _run_name(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    from dflashq.core.keys import valid_run_name  # noqa: PLC0415 - cheap, but --help needs none

    if value is not None and not valid_run_name(value):
        raise click.BadParameter(
            f"{value!r} is no run name: letters, digits, dot, dash and underscore, at most 100, "
            "beginning with a letter or a digit"
        )
    return value


optional_run_argument = click.argument("run", metavar="[RUN]", required=False, callback=_run_name)


def print_json(value: dict[str, Any]) -> None:
    """Print the one JSON object of `--json`."""
    click.echo(json.dumps(value, ensure_ascii=False, indent=1, default=str))


def print_json_with_rows(value: dict[str, Any], name: str, rows: Iterable[dict[str, Any]]) -> None:
    """The same, with `rows` as a list under `name`: one row a line, never all in memory."""
    head = json.dumps(value, ensure_ascii=False, indent=1, default=str).removesuffix("\n}")
    click.echo(f'{head},\n "{name}": [', nl=False)
    for number, row in enumerate(rows):
        click.echo(("," if number else "") + f"\n  {json.dumps(row, ensure_ascii=False)}", nl=False)
    click.echo("]\n}")


def say(text: str) -> None:
    """Print a line for a person to stderr."""
    click.echo(text, err=True)
