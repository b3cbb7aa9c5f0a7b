"""Report and show on a real S3: numbers that can be counted by hand."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dflashq.blobs.s3 import Blobs
from dflashq.cli.root import root
from dflashq.cli.show import ids_line
from dflashq.config import Settings
from dflashq.core import keys
from dflashq.core.model import RunRecord, canonical_json
from dflashq.operations.results.report import summarise
from dflashq.operations.runs.backfill import rerun_rejected
from tests.support.committed_runs import CommittedRunFixture
from tests.support.env import variables
from tests.support.sample_rows import bad, commit, sample

FIRST, SECOND, LAST = "batch-000000", "batch-000001", "batch-000002"


@pytest.fixture
def fleet(
    settings: Settings, blobs: Blobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> CommittedRunFixture:
    monkeypatch.chdir(tmp_path)
    for name, value in variables(settings).items():
        monkeypatch.setenv(name, value)
    return CommittedRunFixture(settings, blobs, tmp_path)


def fill(fleet: CommittedRunFixture, run: str, output: int = 40) -> RunRecord:
    """12 prompts: 9 rejected twice, 4 repeats 3, 10 has two turns, 11 has no domain."""
    record = fleet.enqueue(run).record
    twin = {**sample(4), "messages": sample(3)["messages"], "generations": sample(3)["generations"]}
    commit(fleet.blobs, record, FIRST, [*(sample(n, output=output) for n in range(4)), twin])
    commit(fleet.blobs, record, SECOND, [sample(n) for n in (5, 6, 7, 8)], [bad(9, "empty")])
    rerun_rejected(fleet.ledger, fleet.blobs, fleet.hints, run, None)
    commit(fleet.blobs, record, "batch-000001.r1", [], [bad(9, "looping")])
    commit(fleet.blobs, record, LAST, [sample(10, turns=2), sample(11, domain="<b>&")])
    return record


def call(*args: str, code: int = 0) -> Result:
    result = CliRunner().invoke(root, list(args))
    assert result.exit_code == code, (result.output, result.exception)
    return result


def test_the_numbers_are_those_of_the_samples(fleet: CommittedRunFixture) -> None:
    fill(fleet, "r", output=60)
    steps: list[tuple[int, int]] = []
    found = summarise(fleet.blobs, "r", lambda done, of: steps.append((done, of)))
    assert steps == [(1, 3), (2, 3), (3, 3)]
    assert (found["prompts"], found["accepted"], found["generations"]) == (12, 11, 12)
    assert found["rejected"] == {"looping": 1}
    assert found["finish_reasons"] == {"stop": 12}
    assert found["missing"] == []
    lengths = found["lengths"]
    # Four of 60 (0 to 3), the twin's generation and the seven others of 40.
    assert lengths["output"]["total"] == 4 * 60 + 8 * 40
    assert (lengths["output"]["median"], lengths["output"]["p90"]) == (40, 60)
    assert found["commonest_output"] == {"length": 40, "share": round(8 / 12, 4)}
    assert lengths["answer"]["max"] == 20, "two turns of 10 in one sample"
    assert lengths["thinking"]["max"] == 60
    assert lengths["prompt"]["max"] == 21
    assert found["domains"]["coding"]["accepted"] == 3
    assert found["domains"]["coding"]["rejected"] == 1
    assert found["domains"]["<b>&"]["output_tokens"] == 40
    assert found["sources"]["s"]["accepted"] == 11
    assert found["repeated_answers"]["repeated"] == 1
    assert found["repeated_answers"]["most"] == [{"times": 2, "text": "answer 3.0"}]
    assert found["accept_length"] == 3.0


def test_the_report_in_a_terminal_and_as_a_page(fleet: CommittedRunFixture, tmp_path: Path) -> None:
    fill(fleet, "r")
    page = tmp_path / "report.html"
    shown = call("report", "r", "--html", str(page)).stdout
    assert "run r: 12 prompts, 11 accepted, 1 rejected" in shown
    assert "rejected: looping 1" in shown
    assert "the commonest output length is 40 tokens: 100.0% of generations" in shown
    assert "█" in shown
    text = page.read_text()
    assert "<b>&" not in text
    assert "&lt;b&gt;&amp;" in text
    assert "http" not in text
    assert "<script" not in text
    opened = Tags()
    opened.feed(text)
    assert opened.names.count("svg") == 4
    assert not opened.stack, "every element is closed"


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.stack: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.names.append(tag)
        if tag not in ("meta",):
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.names.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag


def test_two_runs_are_compared(fleet: CommittedRunFixture, tmp_path: Path) -> None:
    fill(fleet, "r")
    fill(fleet, "other", output=100)
    told = json.loads(call("report", "r", "--against", "other", "--json").stdout)
    rows = {what: (a, b) for what, a, b in told["compared"]}
    assert rows["output median"] == (40, 40)
    assert rows["output p99"] == (40, 100)
    assert rows["accepted"] == (round(11 / 12, 4),) * 2
    assert rows["looping"] == (round(1 / 12, 4),) * 2
    page = tmp_path / "two.html"
    assert "output p99" in call("report", "r", "--against", "other", "--html", str(page)).stdout
    assert "r against other" in page.read_text()


def test_an_unfinished_or_empty_run_has_a_report(
    fleet: CommittedRunFixture, tmp_path: Path
) -> None:
    record = fleet.enqueue().record
    shown = call("report", "r", "--html", str(tmp_path / "x.html")).stdout
    assert "not committed yet: 3 batches (the first: batch-000000)" in shown
    commit(fleet.blobs, record, FIRST, [sample(n) for n in range(5)])
    assert "5 accepted" in call("report", "r").stdout
    assert "cannot be written" in call("report", "r", "--html", "/no/such/x.html", code=2).stderr


def test_a_sample_is_shown_with_its_boundaries_and_its_engine(fleet: CommittedRunFixture) -> None:
    fill(fleet, "r")
    profile, report = {"name": "tiny"}, {"version": "0.5.23"}
    engine = {"profile": profile, "server_info": report, "tokenizer_sha256": "abc"}
    fleet.blobs.put(keys.engine_object("r", "e1"), canonical_json(engine))
    shown = call("show", "r", "2").stdout
    assert "index 2 (id p2) of batch-000000: accepted" in shown
    assert "<think>\nthought 2.0\n</think>\nanswer 2.0" in shown
    assert "12 prompt ids, 40 output ids (30 of them thinking), finish stop at 2" in shown
    # 12 ids of the prompt, then the thinking to its </think> (7), then the answer to its end.
    assert "100 | 1002 1002" in shown
    assert "1002 7 || 2002" in shown
    assert "engine e1: profile tiny, version 0.5.23" in shown
    assert "tokenizer_sha256 abc" in shown
    assert "temperature 1.0" in shown
    assert "…" in shown
    assert "…" not in call("show", "r", "2", "--ids").stdout
    told = json.loads(call("show", "r", "2", "--json").stdout)
    assert told["sample"] == sample(2)
    assert told["engines"] == {"e1": engine}


def test_a_rejected_sample_is_shown_with_its_last_reason(fleet: CommittedRunFixture) -> None:
    fill(fleet, "r")
    shown = call("show", "r", "9").stdout
    assert "rejected as looping: it was looping" in shown
    assert "answer 9.0" in shown
    assert "engine e1: its record is not on S3" in shown


def test_what_cannot_be_shown_is_told(fleet: CommittedRunFixture) -> None:
    record = fleet.enqueue().record
    commit(fleet.blobs, record, FIRST, [sample(n) for n in range(4)])
    assert "no index 12: its prompts are 0 to 11" in call("show", "r", "12", code=1).stderr
    assert "not committed yet" in call("show", "r", "7", code=1).stderr
    assert "unrecorded" in call("show", "r", "4", code=1).stderr
    assert "no run named" in call("show", "other", "4", code=1).stderr


def test_ids_are_marked_at_both_boundaries() -> None:
    assert ids_line([1, 2, 3], [4, 5, 6, 7], 2, None) == "1 2 3 | 4 5 || 6 7"
    assert ids_line([1, 2, 3], [4, 5, 6, 7], 0, None) == "1 2 3 | 4 5 6 7"
    assert ids_line(list(range(9)), list(range(9)), 0, 2) == "… 7 8 | 0 1 … 7 8"
