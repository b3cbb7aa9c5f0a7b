"""`python -m tests.support.engine_emulator`: run the emulated engine until SIGTERM."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import click
from aiohttp import web
from pydantic import ValidationError

from tests.support.engine_emulator import chat
from tests.support.engine_emulator.answers import LengthDistribution, Voice
from tests.support.engine_emulator.batch import Pace
from tests.support.engine_emulator.faults import Faults
from tests.support.engine_emulator.server import EmulatedServer, Options, show_json

PR_SET_PDEATHSIG = 1


@click.command()
@click.option("--host", default="127.0.0.1")
@click.option("--port", default=0, help="0: any free port, written to --port-file.")
@click.option("--port-file", type=click.Path(path_type=Path), help="Written when it listens.")
@click.option("--nccl-port", type=int, help="Taken and ignored, as it needs none.")
@click.option("--model", default="emulated", help="model_path and served_model_name.")
@click.option("--slots", default=8, help="Requests that run at once; the others queue.")
@click.option("--token-ms", default=1.0, help="Time of one id.")
@click.option("--token-ms-per-running", default=0.0, help="More for each other running request.")
@click.option("--prefill-ms", default=0.0, help="Time of 1,000 prompt ids.")
@click.option("--speed", default=1.0, help="2: all of it twice as fast.")
@click.option("--lengths", default="fixed:32", help="Of answers; see answers.LengthDistribution.")
@click.option("--ids", default="1000:20000", help="Ordinary ids, low:high (high excluded).")
@click.option("--end-id", default=2, help="The id that ends every answer.")
@click.option("--think-close", type=int, help="`</think>`: answers then think first.")
@click.option("--vocab-size", default=248320)
@click.option("--context-length", default=32768)
@click.option("--speculation", default="EAGLE", help="Algorithm to report, or `none`.")
@click.option("--server-info", default="{}", help="JSON laid over /server_info.")
@click.option("--seed", default=0)
@click.option("--tokenizer", type=click.Path(path_type=Path), help="Folder, for /v1/tokenize.")
@click.option("--template-extra", default="", help="Text that its chat template adds at the end.")
@click.option("--chat", type=click.Choice(chat.KINDS), help="Chat completions; vllm: only those.")
@click.option("--api-key", default="", help="Asked of every request.")
@click.option("--stats-file", type=click.Path(path_type=Path), help="Appended to; JSONL.")
@click.option("--faults", default="{}", help="JSON; see faults.Faults.")
@click.option("--die-with-parent", is_flag=True, help="SIGKILL when the parent thread ends.")
def main(**values: Any) -> None:
    """Serve SGLang's HTTP interface without a model."""
    if values["die_with_parent"]:
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        options, faults = _options(values), Faults.model_validate(show_json(values["faults"]))
    except (ValueError, ValidationError) as exc:
        raise click.UsageError(str(exc)) from None
    if faults.exit_at_start:
        print(faults.exit_at_start, file=sys.stderr, flush=True)  # noqa: T201
        raise SystemExit(1)
    asyncio.run(serve(options, faults, values["host"], values["port"], values["port_file"]))


def _options(values: dict[str, Any]) -> Options:
    low, high = map(int, values["ids"].split(":"))
    voice = Voice(
        lengths=LengthDistribution.parse(values["lengths"]),
        low=low,
        high=high,
        end_id=values["end_id"],
        think_close=values["think_close"],
        vocab_size=values["vocab_size"],
        seed=values["seed"],
    )
    pace = Pace(
        values["token_ms"], values["token_ms_per_running"], values["prefill_ms"], values["speed"]
    )
    speculation = None if values["speculation"].lower() == "none" else values["speculation"]
    return Options(
        model=values["model"],
        slots=values["slots"],
        pace=pace,
        voice=voice,
        context_length=values["context_length"],
        speculation=speculation,
        server_info=show_json(values["server_info"]),
        tokenizer=values["tokenizer"],
        template_extra=values["template_extra"],
        chat=values["chat"] or "",
        api_key=values["api_key"],
        stats_file=values["stats_file"],
    )


async def serve(
    options: Options, faults: Faults, host: str, port: int, port_file: Path | None
) -> None:
    """Listen (only when `ready_after_s` has passed), serve until SIGTERM, then drain."""
    await asyncio.sleep(faults.ready_after_s)
    emulated = EmulatedServer(options, faults)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, emulated.draining.set)
    runner = web.AppRunner(
        emulated.app(), handler_cancellation=True, access_log=None, shutdown_timeout=5
    )
    await runner.setup()
    listener = socket.create_server((host, port), backlog=2048)
    await web.SockSite(runner, listener).start()
    bound = listener.getsockname()[1]
    print(f"The server is fired up and ready to roll! port={bound}", flush=True)  # noqa: T201
    if port_file is not None:
        _write_whole(port_file, str(bound))
    try:
        await emulated.drained()
    finally:
        await runner.cleanup()


def _write_whole(path: Path, text: str) -> None:
    part = path.with_name(f"{path.name}.part")
    part.write_text(text)
    os.replace(part, path)


if __name__ == "__main__":
    main()
