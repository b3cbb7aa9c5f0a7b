"""The report as one HTML file: no script, nothing loaded from elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

_TEMPLATE = Path(__file__).with_name("report.html.jinja")


def page(runs: list[dict[str, Any]], compared: list[tuple[str, float, float]]) -> str:
    """The page of one summary, or of two with their `differences`. All text is escaped."""
    template = Environment(autoescape=True, undefined=StrictUndefined).from_string(
        _TEMPLATE.read_text(encoding="utf-8")
    )
    return template.render(runs=runs, compared=compared)
