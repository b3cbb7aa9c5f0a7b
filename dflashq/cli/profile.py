"""`dflashq profile`: read, hold against an engine, or turn into a command line."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dflashq.cli.session import Session, answer, json_option, pass_session, say
from dflashq.core.errors import ConfigError, EngineError
from dflashq.engine.profiles import Profile, Range, known_profiles, load_profile

if TYPE_CHECKING:
    from dflashq.config import Settings

PORT, NCCL_PORT = 30000, 21000


@click.group()
def profile() -> None:
    """Read engine profiles, and hold them against an engine.

    NAME is that of a profile which ships with dflashq, or a TOML file of yours.
    """


@profile.command("list")
@json_option
@pass_session
def list_profiles(session: Session, as_json: bool) -> None:
    """All profiles that ship with dflashq."""
    loaded = [load_profile(name, session.settings) for name in known_profiles()]
    if as_json:
        answer({"profiles": [one.model_dump(mode="json") for one in loaded]})
        return
    width = max(len(one.name) for one in loaded)
    for one in loaded:
        click.echo(f"{one.name:<{width}}  {one.about}")


@profile.command()
@click.argument("name")
@json_option
@pass_session
def show(session: Session, name: str, as_json: bool) -> None:
    """One profile: model, flags with their reasons, and what the engine must report."""
    one = load_profile(name, session.settings)
    if as_json:
        answer(one.model_dump(mode="json"))
        return
    click.echo("\n".join(_recipe(one)))


@profile.command()
@click.argument("name")
@click.option("--port", default=PORT, show_default=True)
@click.option("--nccl-port", default=NCCL_PORT, show_default=True)
@pass_session
def argv(session: Session, name: str, port: int, nccl_port: int) -> None:
    """The command line that starts the engine, with its environment, for a shell."""
    one = load_profile(name, session.settings)
    gpu = session.settings.gpu
    line = one.argv(port, nccl_port, one.model.path, one.launch.python, gpu)
    env = {**one.launch.env, **({"CUDA_VISIBLE_DEVICES": gpu} if gpu else {})}
    pairs = [f"{key}={shlex.quote(value)}" for key, value in env.items()]
    click.echo(" ".join(["env", *pairs, shlex.join(line)] if pairs else [shlex.join(line)]))


@profile.command()
@click.argument("name")
@click.option("--url", help="A running engine to hold it against.")
@pass_session
def check(session: Session, name: str, url: str | None) -> None:
    """Its flags against the installed engine's own parser, or all of it against a running engine.

    With --url, or a profile for a server that someone else runs: what the server reports, how it
    renders golden prompts, and whether a short generation comes out in order.
    """
    settings = session.settings
    one = load_profile(name, settings)
    address = (url or one.launch.url).rstrip("/")
    if address:
        _check_server(settings, one, address)
    elif one.launch.kind == "sglang":
        _check_flags(one)
    else:
        raise ConfigError(
            f"profile {one.name!r} has no flags to check: give the address of its engine with "
            "--url, or in DFLASHQ_ENGINE_URL if someone else runs it"
        )


def _check_flags(one: Profile) -> None:
    from dflashq.engine.launch_flags import check_flags  # noqa: PLC0415 - only this command needs it

    say("asking SGLang's argument parser: that takes some seconds")
    said = check_flags([one], one.launch.python, one.launch.env)[0]
    if said:
        raise EngineError(f"this SGLang does not take the flags of profile {one.name!r}: {said}")
    click.echo(f"{one.name}: SGLang in {one.launch.python} knows every flag")


def _check_server(settings: Settings, one: Profile, url: str) -> None:
    # Seconds of import (a tokenizer) that the other commands do without.
    from dflashq.engine.chat_renderer import ChatRenderer  # noqa: PLC0415
    from dflashq.engine.profile_match import check_server, running_limit  # noqa: PLC0415
    from dflashq.engine.readiness import Readiness  # noqa: PLC0415
    from dflashq.engine.startup_check import StartupCheck  # noqa: PLC0415

    key = settings.engine_api_key
    ready = Readiness(one, url, key)
    if not ready.reached():
        raise EngineError(f"the engine at {url} is not ready: {ready.missing}")
    check_server(one, ready.server_info)
    click.echo(f"{one.name}: the engine reports what is expected")
    click.echo(f"{running_limit(one, ready.server_info)} requests run at once")
    if not Path(one.model.path).is_dir():
        say(f"no model folder at {one.model.path!r}: how it renders was not compared")
        return
    check = StartupCheck(one, ChatRenderer(one.model.path), key)
    if check.check(url, ready.server_info):
        click.echo("it renders as we do, and what it generates is in order")
    else:
        click.echo("what it generates is in order; it does not tell how it renders: not compared")


def _recipe(one: Profile) -> Iterator[str]:
    yield f"{one.name}: {one.about}"
    yield from ("", f"queue   {one.queue}")
    model = one.model.model_dump()
    yield from (f"model   {key} = {value}" for key, value in model.items() if value != "")
    yield f"launch  {one.launch.kind}, dialect {one.launch.dialect}"
    yield from (f"        {key} = {value}" for key, value in _launch(one).items() if value)
    for flag in one.launch.flags:
        yield f"  {' '.join(flag.words()):<44} {flag.why}"
    yield "expect"
    yield from (f"  {key} = {_bounds(value)}" for key, value in one.expectations().items())
    yield f"sampling  {_pairs(one.sampling.model_dump())}"
    yield f"concurrency  {_pairs(one.concurrency.model_dump())}"


def _launch(one: Profile) -> dict[str, Any]:
    launch = one.launch
    env = _pairs(launch.env)
    return {"python": launch.python, "url": launch.url, "argv": shlex.join(launch.argv), "env": env}


def _bounds(value: Any) -> str:
    if not isinstance(value, Range):
        return str(value)
    parts = [f"at least {value.min}"] if value.min is not None else []
    return " and ".join(parts + ([f"at most {value.max}"] if value.max is not None else []))


def _pairs(values: dict[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in values.items() if value is not None)
