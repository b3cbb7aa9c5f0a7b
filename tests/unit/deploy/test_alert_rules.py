"""Dashboard and alert rules: whole, in terms of declared metrics, each alert with its runbook."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dflashq.core import metrics
from tests.support.paths import ROOT

yaml = pytest.importorskip("yaml")

DEPLOY = ROOT / "scripts" / "deploy"
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((DEPLOY / "rules.yml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]
RUNBOOK = (DEPLOY / "RUNBOOK.md").read_text(encoding="utf-8")
DASHBOARD: dict[str, Any] = json.loads(
    (DEPLOY / "grafana/dashboards/dflashq.json").read_text(encoding="utf-8")
)
METRIC = re.compile(r"\b(?:dflashq_[a-z0-9_]+|sglang:\w+)")
DECLARED = {**metrics.WORKER, **metrics.FLEET}
KNOWN = set(DECLARED) | metrics.ENGINE
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="no promtool here: apt-get install prometheus"
)


def expressions() -> Iterator[tuple[str, str]]:
    """(where, PromQL) of every rule, panel and variable."""
    for rule in RULES:
        yield rule["alert"], rule["expr"]
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        yield variable["name"], variable["definition"]


def test_rules_and_dashboard_speak_of_declared_metrics_only() -> None:
    for where, text in expressions():
        used = set(METRIC.findall(text))
        assert used <= KNOWN, f"{where}: {used - KNOWN}"
        assert used or "up{" in text, where


def test_every_declared_metric_is_looked_at() -> None:
    """What nobody looks at need not be counted."""
    used = {name for _, text in expressions() for name in METRIC.findall(text)}
    spare = {
        "dflashq_prompt_tokens_total",
        "dflashq_generations_total",
        "dflashq_in_flight",
        "dflashq_engine_up",
        "dflashq_engine_sick",
        "dflashq_engine_failures_total",
        "dflashq_batches_at_work",
        "dflashq_run_output_tokens",
        "sglang:gen_throughput",
        "sglang:generation_tokens_total",
    }
    assert KNOWN - used == spare


def test_labels_in_rules_are_those_of_the_metrics() -> None:
    for where, text in expressions():
        for name, matchers in re.findall(r"(dflashq_[a-z0-9_]+)\{([^}]*)\}", text):
            labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))
            own = set(DECLARED[name].labels)
            worker = {"worker", "gpu"} if name in metrics.WORKER else set()
            assert labels <= own | worker, f"{where}: {name} has no label {labels - own}"


def test_every_alert_has_its_paragraph_in_the_runbook() -> None:
    sections = dict(
        re.findall(r"^## (\w+)\n\n(.+?)(?=\n## |\Z)", RUNBOOK, re.DOTALL | re.MULTILINE)
    )
    assert set(sections) == {rule["alert"] for rule in RULES}
    for rule in RULES:
        name = rule["alert"]
        assert rule["annotations"]["runbook"] == f"RUNBOOK.md#{name.lower()}"
        assert len(sections[name]) > 150, name
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]


def test_panels_do_not_overlap_and_have_a_source() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 15
    taken: dict[tuple[int, int], str] = {}
    for panel in panels:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        for x in range(at["x"], at["x"] + at["w"]):
            for y in range(at["y"], at["y"] + at["h"]):
                assert (x, y) not in taken, (panel["title"], taken.get((x, y)))
                taken[x, y] = panel["title"]
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == DASHBOARD["uid"] == "dflashq"
    source = yaml.safe_load(
        (DEPLOY / "grafana/provisioning/datasources/prometheus.yml").read_text(encoding="utf-8")
    )["datasources"][0]
    assert source["uid"] == "dflashq"


def promtool(*words: str) -> str:
    done = subprocess.run(
        ["promtool", *words], cwd=DEPLOY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_promtool
def test_promtool_accepts_configuration_and_rules() -> None:
    promtool("check", "config", "--syntax-only", "prometheus.yml")
    assert f"{len(RULES)} rules found" in promtool("check", "rules", "rules.yml")


@needs_promtool
def test_every_alert_fires_on_its_fault_and_not_without() -> None:
    promtool("test", "rules", "rules_test.yml")
    cases = yaml.safe_load((DEPLOY / "rules_test.yml").read_text(encoding="utf-8"))["tests"]
    asked = [case for test in cases for case in test["alert_rule_test"]]
    firing = {case["alertname"] for case in asked if case.get("exp_alerts")}
    silent = {case["alertname"] for case in asked if not case.get("exp_alerts")}
    assert firing == {rule["alert"] for rule in RULES}
    # The others are silent on one of their own series within the same case.
    assert firing - silent == {"RunPaused", "RejectRateHigh"}


@needs_promtool
def test_promtool_parses_every_panel(tmp_path: Path) -> None:
    plain = [
        text.replace("$run", ".*").replace("$worker", ".*")
        for _, text in expressions()
        if "label_values" not in text
    ]
    rows = [{"record": f"panel:{n}", "expr": text} for n, text in enumerate(plain)]
    path = tmp_path / "panels.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rows}]}))
    assert f"{len(rows)} rules found" in promtool("check", "rules", str(path))
    rows[0]["expr"] = "sum((("
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rows}]}))
    with pytest.raises(AssertionError, match="parse"):
        promtool("check", "rules", str(path))
