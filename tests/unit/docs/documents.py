"""The documents of the repository: their texts, links, headings and code."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.paths import ROOT

PATHS = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("scripts/**/*.md"),
    ]
)
TEXTS = {path: path.read_text(encoding="utf-8") for path in PATHS}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def name_of(path: Path) -> str:
    """The path of a document inside the repository."""
    return path.relative_to(ROOT).as_posix()


def text_of(name: str) -> str:
    """The text of one document, `docs/operating.md`."""
    return TEXTS[ROOT / name]


def prose(text: str) -> str:
    """A document without its code blocks."""
    return FENCE.sub("", text)


def code(text: str) -> list[str]:
    """Every code block and every `span` of a document."""
    return [block for _, block in FENCE.findall(text)] + re.findall(r"`([^`\n]+)`", prose(text))


def links(text: str) -> list[str]:
    """The targets of a document's links, those to other sites left out."""
    targets = re.findall(r"\]\(([^)\s]+)\)", prose(text))
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


def anchors(text: str) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(text), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}
