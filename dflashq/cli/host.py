"""`dflashq host`: set up a GPU host, and keep its workers running."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import click

from dflashq.cli.session import Session, pass_session, say
from dflashq.core.humanize import counted

_profile = click.option("--profile", help="Engine profile: name or file. [DFLASHQ_PROFILE]")


@click.group()
def host() -> None:
    """Set up this host, and start a worker for each of its GPUs."""


@host.command()
@_profile
@click.option(
    "--from",
    "source",
    default="hub",
    show_default=True,
    metavar="hub|s3://…|DIR",
    help="Where the model comes from.",
)
@click.option("--revision", default="", help="Commit on the hub; the profile's unless given.")
@click.option("--dry-run", is_flag=True, help="Only print what would be done.")
@pass_session
def setup(session: Session, profile: str | None, source: str, revision: str, dry_run: bool) -> None:
    """Install the pinned engine and fetch the profile's model.

    After an interruption, the same command goes on where it was. A model that is there already is
    checked, each file against its sha256.
    """
    from dflashq.engine.profiles import load_profile  # noqa: PLC0415 - --help needs none
    from dflashq.operations.hosts.setup import set_up, steps  # noqa: PLC0415

    settings = session.settings
    loaded = load_profile(settings.profile if profile is None else profile, settings)
    session.interrupted = "What was fetched stays; the same command goes on from there."
    if dry_run:
        click.echo("\n".join(steps(loaded, settings, source, revision)))
        return
    for line in set_up(loaded, settings, source, revision, say):
        click.echo(line)


@host.command()
@_profile
@click.option("--gpus", default="all", show_default=True, help="Indexes or UUIDs, with commas.")
@click.option("--stage", is_flag=True, help="Keep the weights in /dev/shm meanwhile.")
@pass_session
def up(session: Session, profile: str | None, gpus: str, stage: bool) -> None:
    """Run one worker for each visible GPU until SIGTERM; then drain them all.

    A worker that dies is started again: at once, after a pause that grows, or not at all when its
    settings are wrong. Its log is in the state folder.
    """
    from dflashq.engine.profiles import load_profile  # noqa: PLC0415 - --help needs none
    from dflashq.operations.hosts import resource_needs, supervisor  # noqa: PLC0415
    from dflashq.operations.hosts.gpus import listed, visible  # noqa: PLC0415
    from dflashq.operations.hosts.weight_staging import staged  # noqa: PLC0415

    settings = session.settings
    name = settings.profile if profile is None else profile
    loaded = load_profile(name, settings)
    devices = visible(listed(), os.environ, gpus)
    where = supervisor.worker_places(loaded, devices)
    need = resource_needs.times(resource_needs.worker_need(settings, loaded), len(where))
    resource_needs.check(need, counted(len(where), "worker"))
    environment = dict(os.environ)
    environment.pop("DFLASHQ_GPU", None)
    with ExitStack() as held:
        held.enter_context(supervisor.single_instance(settings.lock_dir))
        if stage or settings.stage:
            place = held.enter_context(staged(Path(loaded.model.path), _echo))
            environment["DFLASHQ_MODEL_PATH"] = str(place)
        supervisor.HostSupervisor(settings, name, where, environment, _echo).run()


def _echo(line: str) -> None:
    """Print one line for an event, for a terminal or a journal."""
    click.echo(line)
