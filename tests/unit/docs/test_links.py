"""What the documents point at exists: other documents, their headings, files of the repository."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.unit.docs import documents

# A path starts with a folder of the repository; a name in capitals (RUN, BATCH) stands for another.
FOLDERS = ("dflashq", "docs", "scripts", "tests", "workers")
FILE = re.compile(rf"(?:{'|'.join(FOLDERS)})/[\w./-]*")

# The changelog may name files that have moved since.
OF_TODAY = [path for path in documents.PATHS if path.name != "CHANGELOG.md"]


def broken_links(path: Path, text: str) -> list[str]:
    """The links of a document that lead nowhere."""
    broken = []
    for target in documents.links(text):
        name, _, anchor = target.partition("#")
        goal = Path(os.path.normpath(path.parent / name))
        goal_text = documents.TEXTS.get(goal, "") if name else text
        if not goal.exists() or (anchor and anchor not in documents.anchors(goal_text)):
            broken.append(target)
    return broken


def named_files(text: str) -> list[str]:
    """The files and folders of the repository that a document names in code."""
    return [
        match[0].rstrip(".")
        for span in documents.code(text)
        for match in [FILE.fullmatch(span.strip())]
        if match is not None
    ]


@pytest.mark.parametrize("path", documents.PATHS, ids=documents.name_of)
def test_every_link_leads_somewhere(path: Path) -> None:
    assert broken_links(path, documents.TEXTS[path]) == []


@pytest.mark.parametrize("path", OF_TODAY, ids=documents.name_of)
def test_every_file_that_is_named_exists(path: Path) -> None:
    missing = [name for name in named_files(documents.TEXTS[path]) if not (ROOT / name).exists()]
    assert missing == []


def test_every_document_is_in_the_index() -> None:
    index = ROOT / "docs" / "README.md"
    names = [link.partition("#")[0] for link in documents.links(documents.TEXTS[index])]
    linked = {Path(os.path.normpath(index.parent / name)) for name in names}
    of_docs = {path for path in documents.PATHS if path.is_relative_to(index.parent)}
    assert of_docs - linked == {index}


def test_a_broken_link_and_a_lost_file_are_noticed() -> None:
    path = ROOT / "docs" / "example.md"
    text = "# One\n[a](nowhere.md) [b](#one) [c](#two) [d](tutorial.md#nothing) [e](tutorial.md)\n"
    assert broken_links(path, text) == ["nowhere.md", "#two", "tutorial.md#nothing"]
    assert named_files("see `dflashq/nothing.py`, `dflashq status` and `scripts/`") == [
        "dflashq/nothing.py",
        "scripts/",
    ]


def test_the_readme_is_short_enough_for_a_newcomer() -> None:
    assert len(documents.text_of("README.md").splitlines()) < 200
