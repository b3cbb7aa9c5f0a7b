"""`make demo`: the whole job on one machine, with a real engine on the CPU."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import click
from demo_summary import copy_objects, print_summary

from dflashq import config
from dflashq.core.errors import DflashqError
from dflashq.embedded import local
from dflashq.embedded.cpu_engine import ensure_engine, ensure_smollm2
from dflashq.embedded.pidfile import ProcessRecord
from dflashq.system.ports import free_port

ROOT = Path(__file__).resolve().parents[1]
STATE = ROOT / "build" / "demo"
OUTPUT = ROOT / "demo-output"
PROMPTS = ROOT / "scripts" / "demo-prompts.jsonl"
COMMAND = str(Path(sys.executable).with_name("dflashq"))
PROFILE = "smollm2-cpu"
# The model's answers are short. Longer ones are rejected as truncated, and counted.
SAMPLING = ("max_new_tokens=96",)


def say(sentence: str) -> None:
    click.secho(f"\n== {sentence}", bold=True)


class Background:
    """The demo's processes that are not servers: the worker and Flower, with pid files."""

    def __init__(self, env: dict[str, str]) -> None:
        self._env = env

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        with (STATE / f"{name}.log").open("ab") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "celery", "-A", "workers", *command],
                cwd=ROOT,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        ProcessRecord.of(process.pid).write(STATE / f"{name}.pid")
        return process


def stop_all() -> None:
    """Stop what an earlier or this demo left running: the worker first, the servers last."""
    for name in ("worker", "flower"):
        path = STATE / f"{name}.pid"
        record = ProcessRecord.read(path)
        if record is not None:
            record.stop(name, grace_s=60.0)
        path.unlink(missing_ok=True)
    local.down(config.load(state_dir=STATE))


def left_running() -> list[int]:
    """Ids of the demo's processes that still run: their environment names its STATE folder."""
    marker = f"DFLASHQ_STATE_DIR={STATE}".encode()
    pids = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if marker in environ.read_bytes().split(b"\0"):
                pids.append(int(environ.parent.name))
    return pids


@contextmanager
def stopping(keep: bool) -> Iterator[None]:
    try:
        yield
    except BaseException:
        stop_all()
        raise
    if not keep:
        say("stopping everything")
        stop_all()


def environment() -> dict[str, str]:
    """This process's environment with the local servers' addresses and credentials."""
    status = local.up(config.load(state_dir=STATE))
    lines = [line for line in status.env_file.read_text().splitlines() if "=" in line]
    pairs = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    # A short pause between sweeps: a demo should not wait for hints.
    own = {"DFLASHQ_STATE_DIR": str(STATE), "DFLASHQ_PROFILE": PROFILE, "DFLASHQ_SWEEP_S": "1"}
    return {**os.environ, **pairs, **own}


def run_command(env: dict[str, str], *words: str) -> None:
    """One `dflashq` command on this terminal; the demo ends when it fails."""
    click.secho(f"$ dflashq {' '.join(words)}", dim=True)
    exit_code = subprocess.run([COMMAND, *words], check=False, env=env, cwd=ROOT).returncode
    if exit_code:
        raise SystemExit(f"dflashq {words[0]} ended with {exit_code}; logs are in {STATE}")


def watch(env: dict[str, str], run: str, worker: subprocess.Popen[bytes]) -> None:
    """Live progress until the run is finished; the demo ends when the worker does."""
    command = subprocess.Popen([COMMAND, "watch", run], env=env)
    while command.poll() is None:
        if worker.poll() is not None:
            command.terminate()
            command.wait()
            tail = (STATE / "worker.log").read_text(errors="replace").splitlines()[-30:]
            raise SystemExit("the worker ended early. Its log ends with:\n" + "\n".join(tail))
        time.sleep(0.2)
    if command.returncode:
        raise SystemExit(f"the run did not finish well: dflashq status {run}")


def prepare() -> None:
    say("engine and model (built once, then cached)")
    cache = config.load().cache_dir
    ensure_engine(cache, click.echo)
    click.echo(f"engine: SGLang on the CPU; model: {ensure_smollm2(cache, click.echo).name}")


def job(env: dict[str, str], run: str) -> tuple[str, float]:
    """Worker, Flower, prompts in, batches out; returns Flower's address and the seconds taken."""
    background = Background(env)
    port = free_port()
    say("one worker that owns the engine, and Flower")
    worker = background.start("worker", "worker", "-n", "demo@%h", "--loglevel", "INFO")
    background.start("flower", "flower", "--address=127.0.0.1", f"--port={port}")
    click.echo(f"logs: {STATE}/worker.log, {STATE}/flower.log")
    say("prompts in")
    sampling = [word for pair in SAMPLING for word in ("--sampling", pair)]
    words = ("--run", run, "--profile", PROFILE, "--batch-size", "8", "--no-thinking")
    rejected = ("--rejected", str(STATE / f"rejected-{run}.jsonl"))
    run_command(env, "enqueue", str(PROMPTS), *words, *sampling, *rejected)
    say("batches out (the engine loads for about a minute first)")
    began = time.monotonic()
    watch(env, run, worker)
    return f"http://127.0.0.1:{port}", time.monotonic() - began


@click.command()
@click.option("--keep", is_flag=True, help="Leave servers, worker and Flower running.")
@click.option("--down", is_flag=True, help="Stop what a kept demo left running.")
def main(keep: bool, down: bool) -> None:
    """Run the demo; exit code 0 when every prompt is in its place and nothing is left running."""
    began = time.monotonic()
    stop_all()
    if down:
        return
    prepare()
    shutil.rmtree(STATE, ignore_errors=True)
    STATE.mkdir(parents=True)
    run = datetime.now(UTC).strftime("demo-%Y%m%d-%H%M%S")
    with stopping(keep), ExitStack() as stack:
        say("Redis and S3 on this machine")
        env = environment()
        flower, seconds = job(env, run)
        say("the proof")
        run_command(env, "verify", run)
        say("what came out (answers are cut at 96 tokens, so that the demo is short)")
        settings = stack.enter_context(settings_of(env))
        print_summary(settings, run, seconds)
        copy_objects(settings, run, OUTPUT)
        if keep:
            say("left running (make demo-down stops it)")
            click.echo(f"Flower   {flower}\nRedis    {settings.redis_url}")
            click.echo(f"S3       {settings.s3_endpoint_url}  bucket {settings.s3_bucket}")
            click.echo(f"use it   set -a; . {STATE}/local/local.env; set +a; dflashq status")
    if not keep and (left := left_running()):
        raise SystemExit(f"processes are left running: {left}")
    click.secho(f"\ndemo done in {time.monotonic() - began:.0f} s", bold=True)


@contextmanager
def settings_of(env: dict[str, str]) -> Iterator[config.Settings]:
    """The settings that an environment gives, as the demo's own commands see them."""
    before = dict(os.environ)
    os.environ.update(env)
    try:
        yield config.load()
    finally:
        os.environ.clear()
        os.environ.update(before)


if __name__ == "__main__":
    try:
        main()
    except DflashqError as exc:
        raise SystemExit(str(exc)) from None
