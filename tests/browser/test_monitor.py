"""People's way through the monitor, in a real browser, on a live run."""

from __future__ import annotations

from pathlib import Path

import pytest
import requests
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from dflashq.config import Settings
from dflashq.core.model import Guard
from tests.browser.conftest import DESKTOP, PHONE, MonitorProcess, Page
from tests.support.fault_fleet import FaultFleet
from tests.support.fleet import prompts_file, wait_until
from tests.support.monitor_fixture import TOKEN, MonitorFixture, announce, fill, serving

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(600)]
RUN = "qwen-mix-1"
TOLERANT = Guard(canary=12, max_rejected=1.0, min_median_tokens=0)


@pytest.fixture(scope="module")
def live(
    show: tuple[FaultFleet, MonitorProcess], tmp_path_factory: pytest.TempPathFactory
) -> FaultFleet:
    """The run that the pages show: 60 batches of 12 prompts, behind a canary."""
    fault_fleet, _ = show
    path: Path = prompts_file(tmp_path_factory.mktemp("prompts") / "prompts.jsonl", 720)
    fault_fleet.begin_from(RUN, path, batch_size=12, guard=TOLERANT)
    return fault_fleet


@pytest.fixture
def page(browser: webdriver.Chrome, show: tuple[FaultFleet, MonitorProcess]) -> Page:
    fresh = Page(browser, show[1].address)
    fresh.errors()  # those of the tests before are theirs
    return fresh


def equal_to_ledger(page: Page, fault_fleet: FaultFleet) -> bool:
    """Whether the page has the ledger's numbers; both go on, so it is asked again."""
    status = fault_fleet.ledger.status(RUN)
    shown = [page.number(label) for label in ("batches", "prompts settled", "accepted")]
    counters = status.counters
    return shown == [status.done, counters.get("prompts", 0), counters.get("accepted", 0)]


def test_progress_moves_by_itself(page: Page, live: FaultFleet) -> None:
    wait_until(lambda: requests.get(f"{page.address}/runs/{RUN}", timeout=9).ok, "it is known", 10)
    page.open(f"/runs/{RUN}")
    page.wait("#sentence", "batches done")
    page.shoot("run-beginning")
    wait_until(lambda: page.number("batches") >= 3, "three batches are done", 60)
    before = page.number("prompts settled")
    wait_until(lambda: page.number("prompts settled") > before, "it moves", 60)
    page.wait("#worker-list", "gpu0@test")
    wait_until(lambda: len(page.all("#chart-speed canvas")) == 1, "a chart is drawn", 60)
    assert page.errors() == []


def test_pause_and_resume_from_the_page(page: Page, live: FaultFleet) -> None:
    page.open(f"/runs/{RUN}")
    wait_until(lambda: bool(page.all("[data-act=pause]")), "there is a button", 30)
    page.one("[data-act=pause]").click()
    page.one("#act-dialog input[name=reason]").send_keys("looking at the samples")
    page.shoot("pause-dialog", whole=False)
    assert page.complaints() == []
    page.one("#act-dialog button[type=submit]").click()
    page.wait("#state", "paused")
    assert live.ledger.status(RUN).reason == "looking at the samples"
    page.wait("#events", "paused the run: looking at the samples")
    page.shoot("run-paused")
    wait_until(lambda: bool(page.all("[data-act=resume]")), "there is a button", 30)
    page.one("[data-act=resume]").click()
    page.one("#act-dialog button[type=submit]").click()
    page.wait("#state", "active")
    page.wait("#events", "resumed the run")
    assert "The run is paused" not in page.text("#events"), "told once, by whoever did it"
    assert live.ledger.state(RUN) == "active"
    assert page.errors() == []


def test_a_batch_opens_by_keyboard(page: Page, live: FaultFleet) -> None:
    page.open(f"/runs/{RUN}")
    wait_until(lambda: len(page.all("#grid button")) > 3, "the grid is there", 30)
    page.browser.execute_script("document.querySelector('#grid button').focus()")
    for key in (Keys.ARROW_RIGHT, Keys.ARROW_LEFT, Keys.ENTER):
        # To whatever has the focus: the grid is drawn anew under a live run, and keeps it.
        ActionChains(page.browser).send_keys(key).perform()
    page.wait("#batch-dialog", "What happened to it")
    assert "batch-000000" in page.text("#batch-dialog")
    page.shoot("batch-dialog", whole=False)
    ActionChains(page.browser).send_keys(Keys.ESCAPE).perform()
    assert (
        page.browser.execute_script("return document.querySelector('#batch-dialog').open") is False
    )


def test_a_rejected_sample_is_read(page: Page, live: FaultFleet) -> None:
    wait_until(
        lambda: live.ledger.status(RUN).counters.get("rejected_truncated", 0) > 0, "a rejection", 60
    )
    page.open(f"/runs/{RUN}")
    wait_until(lambda: bool(page.all("#reasons a")), "rejects are listed", 30)
    page.browser.execute_script("document.querySelector('#reasons a').click()")
    wait_until(lambda: len(page.all(".sample.rejected")) > 0, "a rejected sample", 30)
    page.one(".sample.rejected > summary").click()
    page.wait(".sample.rejected", "rejected: truncated.")
    page.shoot("sample-rejected")
    page.open(f"/runs/{RUN}/samples?verdict=accepted")
    wait_until(lambda: len(page.all(".sample.accepted")) > 0, "an accepted sample", 30)
    page.one(".sample.accepted > summary").click()
    page.wait(".sample.accepted", "of them thinking")
    folded = page.one(".sample.accepted .thinking")
    assert folded.get_attribute("open") is None, "thinking is folded"
    page.shoot("sample-accepted")
    assert page.errors() == []


def test_numbers_equal_the_ledger_after_a_worker_crash(
    page: Page, live: FaultFleet, show: tuple[FaultFleet, MonitorProcess]
) -> None:
    page.open(f"/runs/{RUN}")
    wait_until(lambda: page.number("batches") > 0, "numbers are shown", 30)
    live.holder(RUN).kill()
    wait_until(lambda: equal_to_ledger(page, live), "page and ledger agree", 30)
    for name in ("gpu0", "gpu1"):
        if live.named[name].process.poll() is not None:
            live.launch(name)
    live.bring_up("gpu0", "gpu1")
    wait_until(lambda: equal_to_ledger(page, live), "page and ledger agree again", 30)


def test_the_server_is_lost_and_comes_back(
    page: Page, live: FaultFleet, show: tuple[FaultFleet, MonitorProcess]
) -> None:
    page.open(f"/runs/{RUN}")
    page.wait("#sentence", "batches done")
    assert show[1].stop() == 0
    page.wait("#banner", "has not answered for", 30)
    page.shoot("server-lost", whole=False)
    show[1].start()
    wait_until(lambda: page.text("#banner") == "", "the banner goes", 30)
    wait_until(lambda: equal_to_ledger(page, live), "the numbers go on", 30)
    # The page is older than the server: its first POST must find the new session.
    page.one("[data-act=pause]").click()
    page.one("#act-dialog button[type=submit]").click()
    page.wait("#state", "paused")
    page.one("[data-act=resume]").click()
    page.one("#act-dialog button[type=submit]").click()
    page.wait("#state", "active")


def test_a_silent_redis_shows_as_age(page: Page, live: FaultFleet) -> None:
    page.open(f"/runs/{RUN}")
    page.wait("#sentence", "batches done")
    live.redis.stop()
    try:
        page.wait("#banner", "These numbers are", 40)
        assert "did not answer" in page.text("#banner")
        page.shoot("redis-silent", whole=False)
    finally:
        live.redis.start()
    wait_until(lambda: page.text("#banner") == "", "the banner goes", 60)


@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_page_is_whole_and_has_no_serious_finding(
    page: Page, live: FaultFleet, size: tuple[int, int], dark: bool
) -> None:
    page.size, page.dark = size, dark
    findings = {}
    for name, path, selector in (
        ("overview", "/", ".card .bar"),
        ("run", f"/runs/{RUN}", "#grid button"),
        ("workers", "/workers", "#worker-list table"),
        ("samples", f"/runs/{RUN}/samples", ".sample"),
        ("missing", "/runs/nothing", "h1"),
    ):
        page.open(path)
        wait_until(lambda s=selector: len(page.all(s)) > 0, f"{path} has {selector}", 30)
        if name == "run":
            wait_until(lambda: len(page.all("#chart-speed canvas")) == 1, "a chart is drawn", 60)
            wait_until(lambda: len(page.all("#domain-list table")) == 1, "domains are there", 60)
        page.shoot(name)
        assert page.sideways() <= 0, f"{path} is wider than the screen"
        findings[path] = page.complaints()
    assert not any(findings.values()), findings


def test_a_large_run_behind_a_login(browser: webdriver.Chrome, settings: Settings) -> None:
    stage = MonitorFixture(settings, f"ann:{TOKEN}")
    fill(stage.ledger, "large", 3000, 1700, workers=120, dead=20)
    announce(stage.ledger, 5, ["large/batch-001800"], engine="down", closed=["the engine is down"])
    with serving(stage) as address:
        page = Page(browser, address)
        page.errors()
        page.open("/runs/large")
        assert page.complaints() == []
        page.one("#token").send_keys("not the token")
        page.one("form.login button").click()
        page.wait("[role=alert]", "no token")
        page.shoot("login-wrong", whole=False)
        page.one("#token").send_keys(TOKEN)
        page.one("form.login button").click()
        wait_until(lambda: len(page.all("#grid button")) == 500, "a page of the grid", 30)
        page.wait("header", "ann")
        page.one("#segments button.dead").click()
        wait_until(lambda: len(page.all("#grid button.dead")) == 20, "the dead ones", 30)
        page.one("#grid button.dead").click()
        page.wait("#batch-dialog", "another object lies at its key")
        assert page.complaints() == []
        page.shoot("large-dead", whole=False)
        ActionChains(page.browser).send_keys(Keys.ESCAPE).perform()
        page.wait("#worker-list", "takes no new prompts: the engine is down")
        page.shoot("large")
        assert page.complaints() == []
        errors = [error for error in page.errors() if "/login" not in error]
        assert errors == [], "of the wrong token the console was told, of nothing else"


def test_the_run_ends(page: Page, live: FaultFleet) -> None:
    page.open(f"/runs/{RUN}")
    live.wait_finished(RUN, 300)
    page.wait("#state", "finished")
    wait_until(lambda: equal_to_ledger(page, live), "page and ledger agree", 30)
    report = live.oracle(RUN)
    assert page.number("accepted") == report.accepted
    page.shoot("run-finished")
