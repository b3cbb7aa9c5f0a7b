"""The pages as they come from the server, before any script."""

from __future__ import annotations

import re

from dflashq.config import Settings
from tests.integration.web.conftest import Sampled
from tests.support.monitor_fixture import MonitorFixture


def test_the_top_of_a_run_is_its_sentence(stage: MonitorFixture, sampled: Sampled) -> None:
    stage.look()
    text = stage.client.get("/runs/r").text
    assert "2 of 3 batches done, no worker is up" in text
    assert '<html lang="en">' in text
    assert 'class="skip" href="#main"' in text


def test_the_overview_lists_runs_and_says_how_to_begin(
    stage: MonitorFixture, settings: Settings
) -> None:
    empty = MonitorFixture(settings)
    empty.look()
    assert "No run yet" in empty.client.get("/").text


def test_before_the_first_look_the_page_says_so(stage: MonitorFixture) -> None:
    assert "has not read the ledger yet" in stage.client.get("/").text
    assert stage.client.get("/api/runs").status_code == 503


def test_an_unknown_run_is_a_page_with_a_way_out(stage: MonitorFixture, sampled: Sampled) -> None:
    stage.look()
    response = stage.client.get("/runs/nothing")
    assert response.status_code == 404
    assert "no run named" in response.text
    assert "To the runs" in response.text


def test_every_file_that_a_page_names_is_shipped(stage: MonitorFixture, sampled: Sampled) -> None:
    stage.look()
    named: set[str] = set()
    for page in ("/", "/runs/r", "/runs/r/samples", "/workers"):
        named |= set(re.findall(r'(?:src|href)="(/static/[^"]+)"', stage.client.get(page).text))
    assert len(named) >= 7
    for script in [name for name in named if name.endswith(".js") and "vendor" not in name]:
        text = stage.client.get(script).text
        named |= {f"/static/{n}" for n in re.findall(r'from "\./([^"]+)"', text)}
    for name in named:
        assert stage.client.get(name).status_code == 200, name
    assert {"/static/common.js", "/static/charts.js", "/static/batches.js"} <= named
