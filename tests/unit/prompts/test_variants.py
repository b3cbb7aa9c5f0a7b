"""Rows of every shape that prompt files have: each ends as `EXPECT.json` says, to the word.

`EXPECT.json` has, for each file, what becomes of each line: `accept`, `normalise` or `reject` with
all its reason words, or `skip` for a blank line; or that the file is refused as a whole.
"""

from __future__ import annotations

import json

import pytest

from dflashq.core.errors import InputError
from dflashq.prompts.reader import read_prompts
from tests.support.paths import GOLDEN

FOLDER = GOLDEN / "prompt_variants"
EXPECT = json.loads((FOLDER / "EXPECT.json").read_text())
REFUSED = "refused as a whole"


@pytest.mark.parametrize("name", EXPECT)
def test_every_line_ends_as_expected(name: str) -> None:
    if EXPECT[name] == REFUSED:
        with pytest.raises(InputError, match=name):
            list(read_prompts(FOLDER / name))
        return
    skipped: list[int] = []
    rows = list(read_prompts(FOLDER / name, blank=skipped.append))
    outcomes = {str(row.line): " ".join([row.outcome.do, *row.outcome.why]) for row in rows}
    assert outcomes | {str(line): "skip" for line in skipped} == EXPECT[name]
    assert all((row.outcome.row is None) == (row.outcome.do == "reject") for row in rows)


def test_no_file_of_the_corpus_is_forgotten() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {*EXPECT, "EXPECT.json"}
