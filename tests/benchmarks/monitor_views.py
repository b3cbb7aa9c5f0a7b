"""Milliseconds of every view of the monitor, with 10,000 batches and 500 workers.

Real Redis, real server, the observer at work, leases that change all the time. Exit code 1 when
the 95th percentile of a view is over the limit.
"""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path

import click
import requests

from dflashq.core import keys
from dflashq.ledger import Ledger
from tests.support.monitor_fixture import (
    MonitorFixture,
    announce,
    counts_of,
    fill,
    reference,
    serving,
)
from tests.support.rehearsal import servers

RUN = "large"
VIEWS = (
    "/",
    f"/runs/{RUN}",
    "/workers",
    "/api/runs",
    f"/api/runs/{RUN}",
    f"/api/runs/{RUN}/batches",
    f"/api/runs/{RUN}/batches?offset=9500",
    f"/api/runs/{RUN}/batches?state=dead",
    f"/api/runs/{RUN}/batches?reason=stub",
    f"/api/runs/{RUN}/batches?limit=1000",
    f"/api/runs/{RUN}/batches/batch-000017",
    f"/api/runs/{RUN}/series",
    f"/api/runs/{RUN}/series?over=days",
    f"/api/runs/{RUN}/events",
    f"/api/runs/{RUN}/domains",
    f"/api/workers?run={RUN}",
    "/api/workers?limit=500",
    "/api/events",
)


def measure(session: requests.Session, url: str, times: int) -> list[float]:
    """Sorted milliseconds."""
    found = []
    for _ in range(times):
        began = time.perf_counter()
        response = session.get(url, timeout=30)
        found.append((time.perf_counter() - began) * 1000)
        assert response.status_code == 200, (url, response.status_code, response.text[:300])
    return sorted(found)


def work(ledger: Ledger, batches: int, done: int, workers: int, stop: threading.Event) -> None:
    """A batch is done and a worker announces itself, ten times a second."""
    number = done + 50 + 2 * workers
    while not stop.wait(0.1) and number < batches:
        name, counts = keys.batch_name(number), counts_of(number)
        ledger.adopt(RUN, name, reference(RUN, name, counts), counts)
        announce(ledger, number % workers, [])
        number += 1


@click.command()
@click.option("--batches", default=10_000)
@click.option("--workers", default=500)
@click.option("--times", default=100)
@click.option("--limit-ms", default=100.0)
def main(batches: int, workers: int, times: int, limit_ms: float) -> None:
    """Fill a ledger, serve it, ask for every view."""
    with tempfile.TemporaryDirectory() as folder, servers(Path(folder)) as settings:
        stage, done = MonitorFixture(settings), batches * 6 // 10
        began = time.monotonic()
        fill(stage.ledger, RUN, batches, done, workers, dead=20)
        for number in range(720):
            point = {"at": 1000 * 10 * number, "done": number, "settled": number, "accepted": 0}
            row = point | {"tokens_per_s": 1.0, "output_tokens": 1, "working": 1, "rejects": {}}
            stage.store.add_point(RUN, row)
        click.echo(
            f"{batches:,} batches, {workers} workers: filled in {time.monotonic() - began:.0f} s"
        )
        began = time.perf_counter()
        stage.poller.poll()
        click.echo(f"first look: {(time.perf_counter() - began) * 1000:.0f} ms")
        stop = threading.Event()
        worker = threading.Thread(
            target=work, args=(stage.ledger, batches, done, workers, stop), daemon=True
        )
        with serving(stage) as address, requests.Session() as session:
            worker.start()
            slow = [
                view
                for view in VIEWS
                if not tell(view, measure(session, address + view, times), limit_ms)
            ]
            stop.set()
            worker.join()
    if slow:
        raise SystemExit(1)


def tell(view: str, ms: list[float], limit_ms: float) -> bool:
    """Print one line; whether the 95th percentile is under the limit."""
    p95 = ms[int(len(ms) * 0.95)]
    click.echo(f"{view:45s} median {ms[len(ms) // 2]:6.1f}  p95 {p95:6.1f}  worst {ms[-1]:6.1f} ms")
    return p95 <= limit_ms


if __name__ == "__main__":
    main()
