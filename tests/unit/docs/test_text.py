"""The end-of-file hook finds what it is for, and the documents and hooks keep its rule."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.unit.docs import documents

defects = runpy.run_path(str(ROOT / "scripts" / "check_text.py"))["defects"]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (b"", []),
        (b"one\ntwo\n", []),
        (b"one", [1]),
        (b"one\n\n", [2]),
        (b"\n", [1]),
        (b"one \ntwo\t\nthree\r\n", [1, 2, 3]),
    ],
)
def test_a_defect_is_told_with_its_line(text: bytes, lines: list[int]) -> None:
    assert [int(defect.partition(":")[0]) for defect in defects(text)] == lines


@pytest.mark.parametrize("path", documents.PATHS, ids=documents.name_of)
def test_documents_keep_the_rule(path: Path) -> None:
    assert list(defects(path.read_bytes())) == []


def test_every_hook_is_part_of_the_checks_and_needs_no_network() -> None:
    config = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    entries = [
        line.split("entry: .venv/bin/")[1] for line in config.splitlines() if "entry:" in line
    ]
    assert {entry.split()[0] for entry in entries} == {"ruff", "mypy", "lint-imports", "python"}
    for entry in entries:
        assert entry.startswith("python ") or f"$(BIN)/{entry.split(' --')[0]}" in makefile
    assert config.count("repo:") == config.count("repo: local")
