"""A browser, a monitor process, and a run on emulated engines for it to show."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import requests
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from dflashq.config import Settings
from dflashq.embedded.redis import EmbeddedRedis
from dflashq.embedded.s3 import EmbeddedS3
from dflashq.system.ports import free_port
from tests.conftest import REDIS_PASSWORD
from tests.support.engine_emulator import emulated_profile
from tests.support.env import environment
from tests.support.fault_fleet import FaultFleet, fault_fleet_settings
from tests.support.fleet import wait_until
from tests.support.paths import ROOT, TINY_MODEL

SCREENS = ROOT / "build" / "screens"
AXE = ROOT / "build" / "axe" / "node_modules" / "axe-core" / "axe.min.js"
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
PHONE, DESKTOP = (320, 720), (1280, 900)
QUIET = (
    *("--headless=new", "--no-sandbox", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
)

if not (CHROMIUM and DRIVER):
    collect_ignore_glob = ["test_*.py"]


class MonitorProcess:
    """`dflashq monitor` as people start it; it can be taken away and brought back."""

    def __init__(self, settings: Settings, port: int, log: Path) -> None:
        self._settings, self._port, self._log = settings, port, log
        self.address = f"http://127.0.0.1:{port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        program = "from dflashq.cli import main; main()"
        with self._log.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-c", program, "monitor", "--port", str(self._port)],
                cwd=self._log.parent,
                env=environment(self._settings),
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        wait_until(self._answers, "the monitor answers", 30)

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self._log.read_text()[-3000:]
        try:
            return requests.get(f"{self.address}/api/runs", timeout=2).ok
        except requests.RequestException:
            return False

    def stop(self) -> int:
        """SIGTERM, then the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)


@dataclass
class Page:
    """The browser at one width, and what a test asks of what it shows."""

    browser: webdriver.Chrome
    address: str
    size: tuple[int, int] = field(default=DESKTOP)
    dark: bool = False

    def open(self, path: str) -> None:
        # The window of a headless browser has a least width; a phone has none.
        self.browser.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {
                "width": self.size[0],
                "height": self.size[1],
                "deviceScaleFactor": 1,
                "mobile": self.size[0] < 600,
            },
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if self.dark else "light"}
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.browser.get(self.address + path)

    def one(self, selector: str) -> WebElement:
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        """The text as the script has it: an element may be drawn anew between two questions."""
        script = "const e = document.querySelector(arguments[0]); return e ? e.innerText : ''"
        return str(self.browser.execute_script(script, selector))

    def wait(self, selector: str, words: str, timeout_s: float = 30.0) -> None:
        """Block until the element says these words."""
        wait_until(lambda: words in self.text(selector), f"{selector} says {words!r}", timeout_s)

    def number(self, label: str) -> int:
        """A number at the top of a run's page."""
        script = (
            "const d = [...document.querySelectorAll('#numbers div')]"
            ".find((d) => d.querySelector('dt').textContent === arguments[0]);"
            "return d ? d.querySelector('dd').firstChild.textContent : '-1'"
        )
        return int(str(self.browser.execute_script(script, label)).replace(",", ""))

    def shoot(self, name: str, *, whole: bool = True) -> None:
        """A screenshot under build/screens for people to look at."""
        SCREENS.mkdir(parents=True, exist_ok=True)
        width, height = self.size
        if whole:
            height = int(self.browser.execute_script("return document.body.scrollHeight")) + 10
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        look = f"{'phone' if width < 600 else 'desktop'}{'-dark' if self.dark else ''}"
        self.browser.save_screenshot(str(SCREENS / f"{name}-{look}.png"))
        metrics["height"] = self.size[1]
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def sideways(self) -> int:
        """Pixels that the page is wider than the screen."""
        script = (
            "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        return int(self.browser.execute_script(script))

    def complaints(self) -> list[str]:
        """Serious and critical findings of axe-core; skips the test where it is not installed."""
        if not AXE.exists():
            pytest.skip("axe-core is not there: make browser fetches it")
        self.browser.execute_script(AXE.read_text())
        violations = self.browser.execute_async_script(
            "const done = arguments[0]; axe.run(document).then((r) => done(r.violations));"
        )
        return [
            f"{rule['id']} ({rule['impact']}): {node['target']} {node['failureSummary']}"
            for rule in violations
            if rule["impact"] in ("serious", "critical")
            for node in rule["nodes"]
        ]

    def errors(self) -> list[str]:
        """What the browser's console complains about; a lost connection is none of it."""
        rows = self.browser.get_log("browser")  # type: ignore[no-untyped-call]
        return [
            row["message"]
            for row in rows
            if row["level"] == "SEVERE" and "net::ERR_" not in row["message"]
        ]


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for flag in (*QUIET, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    driver.set_script_timeout(60)
    yield driver
    driver.quit()


@pytest.fixture(scope="session")
def show(
    s3_server: EmbeddedS3, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[FaultFleet, MonitorProcess]]:
    """Two workers, a Redis that may be killed, and a monitor."""
    folder = tmp_path_factory.mktemp("show")
    model = TINY_MODEL
    with EmbeddedRedis(folder / "redis", free_port(), REDIS_PASSWORD) as redis:
        stats = folder / "stats.jsonl"
        profile = emulated_profile(
            folder,
            model_dir=model,
            lengths="uniform:40:400",
            token_ms=8,
            slots=8,
            stats_file=stats,
            faults={"truncated": 0.12},
        )
        settings = fault_fleet_settings(redis, s3_server, folder, sweep_s=1.0, lease_ttl_s=4.0)
        with FaultFleet(settings, profile, folder, redis, stats) as fault_fleet:
            for name in ("gpu0", "gpu1"):
                fault_fleet.launch(name)
            fault_fleet.bring_up("gpu0", "gpu1")
            monitor = MonitorProcess(settings, free_port(), folder / "monitor.log")
            monitor.start()
            try:
                yield fault_fleet, monitor
            finally:
                assert monitor.stop() == 0, "the monitor ends in order"
