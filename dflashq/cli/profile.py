"""`dflashq profile`: show a profile, check an engine against it, or print its command line."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dflashq.cli.session import Session, json_option, pass_session, print_json, say
from dflashq.core.errors import ConfigError, EngineError
from dflashq.engine.profiles import Profile, Range, known_profiles, load_profile

if TYPE_CHECKING:
    from dflashq.config import Settings

PORT, NCCL_PORT = 30000, 21000


@click.group()
def profile() -> None:
    """Show engine profiles, and check engines against them.

    NAME is that of a profile which ships with dflashq, or a TOML file of yours.
    """


@profile.command("list")
@json_option
@pass_session
def list_profiles(session: Session, as_json: bool) -> None:
    """All profiles that ship with dflashq."""
    profiles = [load_profile(name, session.settings) for name in known_profiles()]
    if as_json:
        print_json({"profiles": [each.model_dump(mode="json") for each in profiles]})
        return
    width = max(len(each.name) for each in profiles)
    for each in profiles:
        click.echo(f"{each.name:<{width}}  {each.about}")


@profile.command()
@click.argument("name")
@json_option
@pass_session
def show(session: Session, name: str, as_json: bool) -> None:
    """One profile: model, flags with their reasons, and what the engine must report."""
    loaded = load_profile(name, session.settings)
    if as_json:
        print_json(loaded.model_dump(mode="json"))
        return
    click.echo("\n".join(_recipe(loaded)))


@profile.command()
@click.argument("name")
@click.option("--port", default=PORT, show_default=True)
@click.option("--nccl-port", default=NCCL_PORT, show_default=True)
@pass_session
def argv(session: Session, name: str, port: int, nccl_port: int) -> None:
    """The command line that starts the engine, with its environment, for a shell."""
    loaded = load_profile(name, session.settings)
    gpu = session.settings.gpu
    line = loaded.argv(port, nccl_port, loaded.model.path, loaded.launch.python, gpu)
    env = {**loaded.launch.env, **({"CUDA_VISIBLE_DEVICES": gpu} if gpu else {})}
    pairs = [f"{key}={shlex.quote(value)}" for key, value in env.items()]
    click.echo(" ".join(["env", *pairs, shlex.join(line)] if pairs else [shlex.join(line)]))


@profile.command()
@click.argument("name")
@click.option("--url", help="Address of a running engine to check.")
@pass_session
def check(session: Session, name: str, url: str | None) -> None:
    """Check the profile's flags with the installed engine's own parser, or a running engine.

    A running engine, of --url or of a profile for a server that someone else runs, is checked for
    what it reports, how it renders golden prompts, and whether a short generation is in order.
    """
    settings = session.settings
    loaded = load_profile(name, settings)
    address = (url or loaded.launch.url).rstrip("/")
    if address:
        _check_server(settings, loaded, address)
    elif loaded.launch.kind == "sglang":
        _check_flags(loaded)
    else:
        raise ConfigError(
            f"profile {loaded.name!r} has no flags to check: give the address of its engine with "
            "--url, or in DFLASHQ_ENGINE_URL if someone else runs it"
        )


def _check_flags(loaded: Profile) -> None:
    from dflashq.engine.launch_flags import check_flags  # noqa: PLC0415 - only this command needs it

    say("asking SGLang's argument parser: that takes some seconds")
    error = check_flags([loaded], loaded.launch.python, loaded.launch.env)[0]
    if error:
        raise EngineError(
            f"this SGLang does not take the flags of profile {loaded.name!r}: {error}"
        )
    click.echo(f"{loaded.name}: SGLang in {loaded.launch.python} knows every flag")


def _check_server(settings: Settings, loaded: Profile, url: str) -> None:
    # Seconds of import (a tokenizer) that the other commands do without.
    from dflashq.engine.chat_renderer import ChatRenderer  # noqa: PLC0415
    from dflashq.engine.profile_match import check_server, running_limit  # noqa: PLC0415
    from dflashq.engine.readiness import Readiness  # noqa: PLC0415
    from dflashq.engine.startup_check import StartupCheck  # noqa: PLC0415

    key = settings.engine_api_key
    ready = Readiness(loaded, url, key)
    if not ready.reached():
        raise EngineError(f"the engine at {url} is not ready: {ready.missing}")
    check_server(loaded, ready.server_info)
    click.echo(f"{loaded.name}: the engine reports what is expected")
    click.echo(f"{running_limit(loaded, ready.server_info)} requests run at once")
    if not Path(loaded.model.path).is_dir():
        say(f"no model folder at {loaded.model.path!r}: how it renders was not compared")
        return
    check = StartupCheck(loaded, ChatRenderer(loaded.model.path), key)
    if check.check(url, ready.server_info):
        click.echo("it renders as we do, and what it generates is in order")
    else:
        click.echo("what it generates is in order; it does not tell how it renders: not compared")


def _recipe(loaded: Profile) -> Iterator[str]:
    yield f"{loaded.name}: {loaded.about}"
    yield from ("", f"queue   {loaded.queue}")
    model = loaded.model.model_dump()
    yield from (f"model   {key} = {value}" for key, value in model.items() if value != "")
    yield f"launch  {loaded.launch.kind}, dialect {loaded.launch.dialect}"
    yield from (f"        {key} = {value}" for key, value in _launch(loaded).items() if value)
    for flag in loaded.launch.flags:
        yield f"  {' '.join(flag.words()):<44} {flag.why}"
    yield "expect"
    yield from (f"  {key} = {_bounds(value)}" for key, value in loaded.expectations().items())
    yield f"sampling  {_pairs(loaded.sampling.model_dump())}"
    yield f"concurrency  {_pairs(loaded.concurrency.model_dump())}"


def _launch(loaded: Profile) -> dict[str, Any]:
    launch = loaded.launch
    env = _pairs(launch.env)
    return {"python": launch.python, "url": launch.url, "argv": shlex.join(launch.argv), "env": env}


def _bounds(value: Any) -> str:
    if not isinstance(value, Range):
        return str(value)
    parts = [f"at least {value.min}"] if value.min is not None else []
    return " and ".join(parts + ([f"at most {value.max}"] if value.max is not None else []))


def _pairs(values: dict[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in values.items() if value is not None)
