"""A corpus of odd prompt files, where there is one: each row ends as its EXPECT.json allows."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from dflashq.core.errors import InputError
from dflashq.prompts.reader import read_prompts
from tests.support.paths import ROOT

FOLDER = Path(
    os.environ.get("DFLASHQ_PROMPT_VARIANTS") or ROOT.parent / "shared" / "prompts" / "variants"
)
EXPECT = (
    json.loads((FOLDER / "EXPECT.json").read_text()) if (FOLDER / "EXPECT.json").exists() else {}
)

pytestmark = pytest.mark.skipif(not EXPECT, reason="no corpus of prompt variants here")


@pytest.mark.parametrize("name", EXPECT)
def test_every_row_ends_as_expected(name: str) -> None:
    expect = EXPECT[name]
    if expect["level"] == "file-fail":
        with pytest.raises(InputError, match=name):
            list(read_prompts(FOLDER / name))
        return
    outcomes = {row.line: row.outcome for row in read_prompts(FOLDER / name)}
    skipped = {int(n) for n, line in expect["lines"].items() if line["do"] == ["skip"]}
    assert not skipped & outcomes.keys()
    assert len(outcomes) == expect["records"] - (len(skipped) if skipped else 0)
    wrong = {
        line: (outcome.do, outcome.why, outcome.detail)
        for line, outcome in outcomes.items()
        if outcome.do not in expect["lines"].get(str(line), {"do": ["accept"]})["do"]
    }
    assert wrong == {}
    # A row rejected by its own fault has the fault's word, so that a person finds it.
    for number, line in expect["lines"].items():
        if line["do"] == ["reject"]:
            assert outcomes[int(number)].why == (line["why"],)
