"""`dflashq doctor`: check what a run needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import chain

import click

from dflashq.cli.session import Session, json_option, pass_session, print_json
from dflashq.operations.doctor.engine import engine
from dflashq.operations.doctor.finding import FAILED, Finding
from dflashq.operations.doctor.gpu_host import preflight
from dflashq.operations.doctor.services import machine, services


@click.command()
@click.option("--profile", help="Engine profile: name or file. [DFLASHQ_PROFILE]")
@json_option
@pass_session
def doctor(session: Session, profile: str | None, as_json: bool) -> None:
    """Check Redis, S3, clock, engine, model files, tokenizer, GPU, drivers, memory and disk.

    Each line says ok, or what to do. Exit code 1 when a check failed.
    """
    settings = session.settings
    name = settings.profile if profile is None else profile
    findings = []
    host = (engine(settings, name), preflight(settings, name), machine(settings))
    for finding in chain(services(settings), *host):
        findings.append(finding)
        if not as_json:
            click.echo("\n".join(_lines(finding)))
    failed = [finding.name for finding in findings if finding.state == FAILED]
    if as_json:
        print_json({"ok": not failed, "findings": [asdict(finding) for finding in findings]})
    if failed:
        raise SystemExit(1)


def _lines(finding: Finding) -> Iterator[str]:
    first, *rest = finding.says.splitlines() or [""]
    yield f"{finding.state:<8} {finding.name}: {first}"
    yield from (f"         {line}" for line in rest)
