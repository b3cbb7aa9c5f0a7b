"""ARCHITECTURE.md lists every layer and every dependency; the monitor's document every route."""

from __future__ import annotations

import configparser
import re

from flask import Flask

from dflashq.web.api import api
from dflashq.web.sse import stream
from tests.support.paths import ROOT
from tests.unit.docs import documents

ARCHITECTURE = documents.text_of("ARCHITECTURE.md")
SETUP = configparser.RawConfigParser()
SETUP.read(ROOT / "setup.cfg")


def names(requirements: str) -> set[str]:
    """The packages of a list of requirements, without versions and extras."""
    lines = [line.strip() for line in requirements.splitlines() if line.strip()]
    return {re.split(r"[\[=<>~! ]", line)[0] for line in lines}


def layers(contract: str) -> list[list[str]]:
    """The layers of an import contract, top first, each as its siblings."""
    lines = SETUP[f"importlinter:contract:{contract}"]["layers"].split("\n")
    return [re.findall(r"\w+", line) for line in lines if line.strip()]


def test_every_dependency_has_a_line() -> None:
    section = ARCHITECTURE[ARCHITECTURE.index("## Dependencies, and why") :]
    cells = re.findall(r"^\| ([^|]+) \|", section, re.MULTILINE)
    listed = {name for cell in cells for name in re.findall(r"[\w-]+", cell)}
    extras = set().union(*(names(text) for text in SETUP["options.extras_require"].values()))
    needed = names(SETUP["options"]["install_requires"]) | extras - {"dflashq"}
    assert needed - listed == set()


def test_the_layers_are_those_that_are_enforced() -> None:
    diagram = ARCHITECTURE[ARCHITECTURE.index("\ndflashq.\n") :]
    diagram = diagram[: diagram.index("```")]
    shown = [
        re.findall(r"\w+", line.strip().split("  ")[0])
        for line in diagram.splitlines()
        if line.startswith("  ")
    ]
    assert shown == layers("rooms")


def test_the_folders_of_operations_stand_in_the_order_that_is_enforced() -> None:
    table = ARCHITECTURE[ARCHITECTURE.index("Inside `operations`") :]
    shown = re.findall(r"^\| `(\w+)` \|", table[: table.index("\nAnd in")], re.MULTILINE)
    rank = {name: n for n, row in enumerate(layers("operations")) for name in row}
    assert set(shown) == set(rank)
    assert [rank[name] for name in shown] == sorted(rank.values())


def test_every_route_of_the_api_is_documented() -> None:
    app = Flask("routes")
    app.register_blueprint(api)
    app.register_blueprint(stream)
    page = documents.text_of("docs/monitor.md")
    documented = set(re.findall(r"`(/api/[\w/]+)", page))
    verbs = {"/api/runs/RUN/VERB"}
    routes = {
        re.sub(r"<(?:\w+:)?(\w+)>", lambda name: name[1].upper(), rule.rule)
        for rule in app.url_map.iter_rules()
        if rule.endpoint != "static"
    }
    assert routes - verbs == {route for route in documented if not route.endswith("/pause")}
