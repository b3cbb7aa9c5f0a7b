"""The group `dflashq`: loads the command that is called, prints every error as a sentence."""

from __future__ import annotations

import errno
import importlib
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

import click

from dflashq import __version__
from dflashq.cli.session import Session, say
from dflashq.core.errors import DflashqError

COMMANDS = {
    "enqueue": "Read prompt files and give them to the fleet as one run.",
    "status": "Show the progress of all runs and the workers.",
    "watch": "Show a run as it goes, until it is finished.",
    "monitor": "Serve a page on all runs and workers.",
    "pause": "Let the workers hand a run's batches back.",
    "resume": "Go on with a paused run.",
    "cancel": "End a run for good.",
    "verify": "Prove from S3 that every prompt has exactly one place.",
    "report": "Show a run's samples in numbers: lengths, verdicts, duplicates.",
    "show": "Print one sample and where it came from.",
    "rows": "Write a run's training rows, as Parquet on S3.",
    "export": "Write a run's samples in the form that a trainer reads.",
    "validate": "Check training data that others made.",
    "backfill": "Run again what failed: dead batches, or rejected prompts.",
    "checks": "Show what a generation is rejected for, and the thresholds.",
    "reconcile": "Rebuild a run in Redis from S3.",
    "profile": "Show an engine profile, or check an engine against it.",
    "doctor": "Check Redis, S3, engine, model and machine.",
    "host": "Set up a GPU host; start its workers.",
    "bench": "Measure an engine with prompts of a run.",
    "plan": "Estimate days and dollars of a run on given GPUs.",
    "local": "Run Redis and S3 on this machine.",
}
FAILED, BUG, INTERRUPTED = 1, 3, 130


class Root(click.Group):
    """Commands by name; a command's module is imported when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"dflashq.cli.{cmd_name}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        session = ctx.ensure_object(Session)
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit):
            raise
        except (KeyboardInterrupt, click.Abort):
            say(f"\ninterrupted. {session.interrupted}")
            ctx.exit(INTERRUPTED)
        except DflashqError as exc:
            _report_failure(exc, session, ctx)
        except Exception as exc:
            # A closed pipe (`| head`) is handled by click.
            if isinstance(exc, OSError) and exc.errno == errno.EPIPE:
                raise
            _report_bug(exc, session, ctx)


def _report_failure(exc: DflashqError, session: Session, ctx: click.Context) -> NoReturn:
    """An expected failure: print its sentence, exit with its code."""
    if session.debug:
        say(traceback.format_exc())
    say(f"dflashq {ctx.invoked_subcommand or ''}: {exc}")
    ctx.exit(exc.exit_code)


def _report_bug(exc: Exception, session: Session, ctx: click.Context) -> NoReturn:
    """An unexpected failure: print a sentence, and where its traceback is."""
    text = "".join(traceback.format_exception(exc))
    file = None if session.debug else _write_bug_log(text, session)
    if file is None:
        say(text)
    tail = f": {exc}" if str(exc) else ""
    say(
        f"dflashq {ctx.invoked_subcommand or ''}: this is a bug in dflashq, not your mistake "
        f"({type(exc).__name__}{tail}). Please report it"
        + (f" with {file}." if file else " with the text above.")
    )
    ctx.exit(BUG)


def _write_bug_log(text: str, session: Session) -> Path | None:
    """Write the traceback to a file; returns its path, None when it cannot be written."""
    try:
        folder = session.settings.state_dir / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"bug-{time.strftime('%Y%m%d-%H%M%S')}-{time.time_ns() % 10**6:06d}.log"
        path.write_text(f"dflashq {__version__}\n{text}")
    except (OSError, DflashqError):
        return None
    return path


@click.group(cls=Root, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="dflashq")
@click.option("-v", "verbose", count=True, help="Log what dflashq does; twice: also its libraries.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@click.pass_context
def root(ctx: click.Context, verbose: int, debug: bool) -> None:
    """Answer prompts with the target model itself, on a fleet.

    Settings come from DFLASHQ_* environment variables or a .env file. Exit codes: 0 ok, 1 failed,
    2 usage, 3 bug, 130 interrupted.
    """
    session = ctx.ensure_object(Session)
    session.verbose, session.debug = verbose, debug
    session.start_logging()
