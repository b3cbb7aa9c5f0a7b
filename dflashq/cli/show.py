"""`dflashq show`: one sample to read, its ids and its origin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from dflashq.cli.session import Session, json_option, pass_session, print_json, run_argument

if TYPE_CHECKING:
    from dflashq.operations.results.show import SampleDetails

AROUND = 12


@click.command()
@run_argument
@click.argument("index", metavar="INDEX", type=click.IntRange(0))
@click.option("--ids", is_flag=True, help="All ids, not only those around the boundaries.")
@json_option
@pass_session
def show(session: Session, run: str, index: int, ids: bool, as_json: bool) -> None:
    """Print the sample of prompt INDEX of RUN, accepted or rejected.

    Ids are marked where the prompt ends (|) and, for a single turn, where thinking ends (||).
    """
    from dflashq.blobs.s3 import Blobs  # noqa: PLC0415 - seconds that --help need not pay
    from dflashq.operations.results.show import show as read  # noqa: PLC0415

    details = read(Blobs(session.settings), run, index)
    if as_json:
        print_json(
            {
                "batch": details.batch,
                "sample": details.sample,
                "spec": details.spec,
                "engines": details.engines,
            }
        )
    else:
        click.echo("\n".join(_lines(details, everything=ids)))


def _lines(details: SampleDetails, *, everything: bool) -> Iterator[str]:
    sample = details.sample
    verdict = "accepted"
    if "reason" in sample:
        verdict = f"rejected as {sample['reason']}: {sample['detail']}"
    yield f"index {sample['index']} (id {sample['id']}) of {details.batch}: {verdict}"
    yield f"source {sample['source'] or '(none)'}, domain {sample['domain'] or '(none)'}"
    if sample["tools"]:
        yield f"tools: {sample['tools']}"
    for message in sample["messages"]:
        yield from _message(message)
    yield ""
    for turn, generation in enumerate(sample["generations"]):
        yield from _generation(sample, turn, generation, everything=everything)
    yield from _provenance(details)


def _message(message: dict[str, Any]) -> Iterator[str]:
    yield f"\n--- {message['role']}"
    if message["reasoning_content"]:
        yield f"<think>\n{message['reasoning_content']}\n</think>"
    yield message["content"]
    if message["tool_calls"]:
        yield f"calls: {message['tool_calls']}"


def _generation(
    sample: dict[str, Any], turn: int, generation: dict[str, Any], *, everything: bool
) -> Iterator[str]:
    prompt, output = generation["prompt_ids"], generation["output_ids"]
    thought = sample["usage"]["reasoning_tokens"] if len(sample["generations"]) == 1 else 0
    counts = f"{len(prompt):,} prompt ids, {len(output):,} output ids"
    if thought:
        counts += f" ({thought:,} of them thinking)"
    stop = generation["matched_text"] or generation["matched_id"]
    yield f"--- turn {turn}: {counts}, finish {generation['finish_reason']} at {stop}"
    yield ids_line(prompt, output, thought, None if everything else AROUND)


def ids_line(prompt: list[int], output: list[int], thought: int, around: int | None) -> str:
    """`… 8 9 | 20 21 … 30 || 40 … 2`: `around` ids on each side of a boundary, None for all.

    `thought` is the number of output ids that are thinking.
    """
    parts = [_some(prompt, around, head=False)]
    if thought:
        parts += ["|", _some(output[:thought], around), "||", _some(output[thought:], around)]
    else:
        parts += ["|", _some(output, around)]
    return " ".join(part for part in parts if part)


def _some(ids: list[int], around: int | None, *, head: bool = True) -> str:
    if around is None or len(ids) <= around * (1 + head):
        return " ".join(map(str, ids))
    first = ids[:around] if head else []
    return " ".join([*map(str, first), "…", *map(str, ids[-around:])])


def _provenance(details: SampleDetails) -> Iterator[str]:
    sampling = ", ".join(f"{name} {value}" for name, value in details.spec["sampling"].items())
    yield ""
    spec = details.spec
    yield f"model {spec['model']} at {spec['revision']}, thinking {spec['thinking']}"
    yield f"sampling: {sampling}"
    yield f"attempt {details.sample['attempt']}"
    for turn, generation in enumerate(details.sample["generations"]):
        engine = generation["engine"] or "(none)"
        yield (
            f"turn {turn}: engine {engine}, {generation['latency_s']:.1f} s, accept length "
            f"{generation['spec_accept_length']:.2f}"
        )
    for name, engine in details.engines.items():
        profile, report = engine.get("profile", {}), engine.get("server_info", {})
        yield f"engine {name}: profile {profile.get('name')}, version {report.get('version')}"
        for key in ("tokenizer_sha256", "template_sha256"):
            yield f"  {key} {engine.get(key)}"
    lost = {g["engine"] for g in details.sample["generations"]} - set(details.engines)
    for name in sorted(lost - {""}):
        yield f"engine {name}: its record is not on S3"
