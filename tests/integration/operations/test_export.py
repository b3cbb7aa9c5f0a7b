"""Exports of a run on a real S3: exact rows, resumed, checked, refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dflashq.blobs.s3 import Blobs
from dflashq.cli.root import root
from dflashq.config import Settings
from dflashq.core import codec, keys
from dflashq.core.errors import ConflictError, DflashqError, UnknownRunError, UsageError
from dflashq.core.model import RunRecord
from dflashq.core.training_data.rows import rows_of
from dflashq.operations.export.export import ExportResult, Request, export
from dflashq.operations.export.targets import open_target
from dflashq.operations.results.rows import hint_rows, make_rows
from dflashq.operations.results.samples import samples, snapshot
from dflashq.operations.runs.backfill import rerun_rejected
from dflashq.stages.rows.rows_object import write_rows
from tests.support.committed_runs import CommittedRunFixture
from tests.support.env import variables
from tests.support.sample_rows import bad, commit, sample

FIRST, SECOND, LAST = "batch-000000", "batch-000001", "batch-000002"
REVISED = "batch-000001.r1"


@pytest.fixture
def fleet(settings: Settings, blobs: Blobs, tmp_path: Path) -> CommittedRunFixture:
    return CommittedRunFixture(settings, blobs, tmp_path)


@pytest.fixture
def record(fleet: CommittedRunFixture) -> RunRecord:
    """12 prompts: 8 and 9 rejected, 8 accepted by a revision, 10 and 11 of two turns."""
    record = fleet.enqueue().record
    commit(fleet.blobs, record, FIRST, [sample(n) for n in range(5)])
    late = [bad(8, "truncated"), bad(9, "empty")]
    commit(fleet.blobs, record, SECOND, [sample(n) for n in (5, 6, 7)], late)
    commit(fleet.blobs, record, LAST, [sample(n, turns=2) for n in (10, 11)])
    rerun_rejected(fleet.ledger, fleet.blobs, fleet.hints, "r", None)
    commit(fleet.blobs, record, REVISED, [sample(8)], [bad(9, "looping")])
    return record


ACCEPTED = [*range(9), 10, 11]


def write(fleet: CommittedRunFixture, out: Path | str, to: str, **options: Any) -> ExportResult:
    target = open_target(str(out), fleet.settings)
    return export(fleet.blobs, target, Request("r", to, **options), fleet.progress)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for path in sorted(folder.rglob("train-*.jsonl"))
        for line in path.read_text().splitlines()
    ]


def expected(indexes: list[int] = ACCEPTED) -> list[Any]:
    return [row for n in indexes for row in rows_of(sample(n, turns=2 if n in (10, 11) else 1))]


def test_samples_come_in_order_with_revisions_over_rejected_rows(
    fleet: CommittedRunFixture, record: RunRecord
) -> None:
    shot = snapshot(fleet.blobs, "r")
    assert [one["index"] for one in samples(fleet.blobs, shot)] == ACCEPTED
    everything = list(samples(fleet.blobs, shot, rejected=True))
    assert [one["index"] for one in everything] == list(range(12))
    assert {one["index"]: one.get("reason") for one in everything}[9] == "looping"
    assert "reason" not in everything[8]
    assert everything[0] == sample(0)


def test_an_index_accepted_twice_is_refused(fleet: CommittedRunFixture) -> None:
    record = fleet.enqueue().record
    commit(fleet.blobs, record, FIRST, [sample(0), sample(0)])
    with pytest.raises(ConflictError, match="accepted twice"):
        list(samples(fleet.blobs, snapshot(fleet.blobs, "r")))


def test_a_damaged_object_is_refused(
    fleet: CommittedRunFixture, record: RunRecord, tmp_path: Path
) -> None:
    key = keys.completions_object("r", FIRST)
    metadata = fleet.blobs.get(key).metadata
    fleet.blobs.put(key, codec.encode_rows([sample(0)]), metadata)
    with pytest.raises(ConflictError, match="damaged"):
        write(fleet, tmp_path / "x", "specforge")


@pytest.mark.parametrize("to", ["specforge", "speculators"])
def test_token_rows_have_ids_and_mask_and_nothing_else(
    fleet: CommittedRunFixture, record: RunRecord, tmp_path: Path, to: str
) -> None:
    done = write(fleet, tmp_path / "x", to)
    rows = lines(tmp_path / "x")
    assert rows == [{"input_ids": row.input_ids, "loss_mask": row.loss_mask} for row in expected()]
    assert (done.rows, done.supervised, done.dropped) == (13, 13 * 40, 0)
    assert done.tokens == sum(len(row["input_ids"]) for row in rows)
    assert done.domains["coding"]["rows"] == 3
    told = json.loads((tmp_path / "x/export.json").read_text())
    assert told["complete"]
    (shard,) = told["shards"]
    assert shard["sha256"] == codec.sha256((tmp_path / "x" / shard["name"]).read_bytes())


def test_conversations_have_one_turn_to_train_and_one_schema(
    fleet: CommittedRunFixture, record: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    write(fleet, tmp_path / "x", "conversations", shard_rows=4)
    rows = lines(tmp_path / "x")
    assert [row["id"] for row in rows][-4:] == ["p10.0", "p10.1", "p11.0", "p11.1"]
    assert all(set(row) == {"id", "conversations", "tools"} for row in rows)
    second = rows[-1]["conversations"]
    assert [one["role"] for one in second] == ["user", "assistant"] * 2
    assert [one["reasoning_content"] for one in second] == ["", "", "", "thought 11.1"]
    assert second[1]["content"] == "answer 11.0"
    files = [str(path) for path in sorted((tmp_path / "x").glob("*.jsonl"))]
    loaded = datasets.load_dataset("json", data_files=files, split="train")
    assert loaded.column_names == ["id", "conversations", "tools"]
    assert loaded[0]["conversations"] == rows[0]["conversations"]


def test_tools_and_calls_are_json_text(fleet: CommittedRunFixture, tmp_path: Path) -> None:
    record = fleet.enqueue(count=1).record
    one = sample(0, tools=[{"type": "function", "function": {"name": "f"}}])
    call = {"id": "call_0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    one["messages"][-1]["tool_calls"] = json.dumps([call])
    commit(fleet.blobs, record, FIRST, [one])
    write(fleet, tmp_path / "x", "conversations")
    (row,) = lines(tmp_path / "x")
    assert json.loads(row["tools"])[0]["function"]["name"] == "f"
    assert json.loads(row["conversations"][-1]["tool_calls"]) == [call]
    assert row["conversations"][0]["tool_calls"] == "[]"


def test_parquet_is_read_by_datasets(
    fleet: CommittedRunFixture, record: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    write(fleet, tmp_path / "x", "parquet", shard_rows=5)
    files = [str(path) for path in sorted((tmp_path / "x").glob("*.parquet"))]
    assert len(files) == 3
    loaded = datasets.load_dataset("parquet", data_files=files, split="train")
    assert list(loaded) == [row.to_json() for row in expected()]


def test_rows_on_s3_are_written_once_and_read_by_datasets(
    fleet: CommittedRunFixture, record: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    hinted = hint_rows(fleet.ledger, fleet.blobs, fleet.hints, "r")
    assert hinted.hinted == [FIRST, SECOND, REVISED, LAST]
    assert fleet.hints.waiting("rows") == 4
    made = make_rows(fleet.blobs, "r", lambda done, of: None)
    assert (made.written, made.there, made.rows) == (4, 0, 13)
    again = make_rows(fleet.blobs, "r", lambda done, of: None)
    assert (again.written, again.there, again.rows) == (0, 4, 13)
    found = sorted(fleet.blobs.list(keys.rows_prefix("r")))
    files = []
    for key in found:
        blob = fleet.blobs.get(key)
        assert codec.sha256(blob.body) == blob.metadata["sha256"]
        files.append(str(tmp_path / key.rpartition("/")[2]))
        Path(files[-1]).write_bytes(blob.body)
    loaded = datasets.load_dataset("parquet", data_files=files, split="train")
    indexes = [(row.index, row.turn) for row in expected()]
    assert sorted((row["index"], row["turn"]) for row in loaded) == indexes
    assert loaded[0] == expected()[0].to_json()


def test_rows_of_another_commit_are_refused(fleet: CommittedRunFixture, record: RunRecord) -> None:
    fleet.blobs.put(keys.rows_object("r", FIRST), b"x", {"completions-sha256": "other"})
    with pytest.raises(ConflictError, match="another completions object"):
        make_rows(fleet.blobs, "r", lambda done, of: None)


def test_an_export_goes_on_where_it_was_killed(
    fleet: CommittedRunFixture, record: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class KilledError(Exception):
        pass

    whole = tmp_path / "whole"
    write(fleet, whole, "specforge", shard_rows=2)
    out = tmp_path / "x"
    target = open_target(str(out), fleet.settings)
    put_new, made = target.put_new, []

    def dying(name: str, body: bytes) -> None:
        if len(made) == 3:
            raise KilledError
        made.append(name)
        put_new(name, body)

    monkeypatch.setattr(target, "put_new", dying)
    request = Request("r", "specforge", shard_rows=2)
    with pytest.raises(KilledError):
        export(fleet.blobs, target, request, fleet.progress)
    assert not json.loads((out / "export.json").read_text())["complete"]
    before = {name: (out / name).stat().st_mtime_ns for name in made}
    done = write(fleet, out, "specforge", shard_rows=2)
    assert len(done.shards) == 7
    assert {name: (out / name).stat().st_mtime_ns for name in made} == before
    names = sorted(path.name for path in whole.iterdir())
    assert sorted(path.name for path in out.iterdir()) == names
    for name in names:
        assert (out / name).read_bytes() == (whole / name).read_bytes()
    assert write(fleet, out, "specforge", shard_rows=2).again


def test_a_lost_shard_is_made_anew_and_a_damaged_one_told(
    fleet: CommittedRunFixture, record: RunRecord, tmp_path: Path
) -> None:
    out = tmp_path / "x"
    write(fleet, out, "specforge", shard_rows=5)
    shard = out / "train-00001.jsonl"
    body = shard.read_bytes()
    shard.unlink()
    assert not write(fleet, out, "specforge", shard_rows=5).again
    assert shard.read_bytes() == body
    shard.write_bytes(body[:-5])
    with pytest.raises(ConflictError, match="train-00001"):
        write(fleet, out, "specforge", shard_rows=5)
    assert shard.read_bytes() == body[:-5]


def test_another_export_in_the_same_place_is_refused(
    fleet: CommittedRunFixture, record: RunRecord, tmp_path: Path
) -> None:
    write(fleet, tmp_path / "x", "specforge")
    with pytest.raises(UsageError, match=r"max_length: there None, asked 40"):
        write(fleet, tmp_path / "x", "specforge", max_length=40)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="not empty"):
        write(fleet, tmp_path / "full", "specforge")
    rerun_rejected(fleet.ledger, fleet.blobs, fleet.hints, "r", None)
    commit(fleet.blobs, record, "batch-000001.r2", [sample(9)])
    with pytest.raises(UsageError, match="gained samples since"):
        write(fleet, tmp_path / "x", "specforge")


def test_an_unfinished_run_needs_partial(fleet: CommittedRunFixture, tmp_path: Path) -> None:
    record = fleet.enqueue().record
    commit(fleet.blobs, record, FIRST, [sample(n) for n in range(5)])
    with pytest.raises(DflashqError, match="2 batches not committed"):
        write(fleet, tmp_path / "x", "specforge")
    assert not (tmp_path / "x").exists()
    done = write(fleet, tmp_path / "x", "specforge", partial=True)
    assert (done.rows, done.missing) == (5, [SECOND, LAST])


def test_an_export_to_s3_is_the_one_to_a_folder(
    fleet: CommittedRunFixture, record: RunRecord, tmp_path: Path
) -> None:
    write(fleet, tmp_path / "x", "specforge", shard_rows=6)
    out = f"s3://{fleet.blobs.bucket}/{fleet.blobs.prefix}exports/one"
    assert len(write(fleet, out, "specforge", shard_rows=6).shards) == 3
    found = list(fleet.blobs.list("exports/one/"))
    assert [key.rpartition("/")[2] for key in found] == sorted(
        path.name for path in (tmp_path / "x").iterdir()
    )
    for key in found:
        local = tmp_path / "x" / key.rpartition("/")[2]
        assert fleet.blobs.get(key).body == local.read_bytes()
    assert write(fleet, out, "specforge", shard_rows=6).again


@pytest.mark.parametrize("out", ["s3://bucket", "http://host/x", "s3:///x"])
def test_a_place_that_is_none_is_refused(fleet: CommittedRunFixture, out: str) -> None:
    with pytest.raises(UsageError, match="neither a folder"):
        open_target(out, fleet.settings)


def test_long_rows_are_dropped_or_cut_and_counted(
    fleet: CommittedRunFixture, record: RunRecord, tmp_path: Path
) -> None:
    dropped = write(fleet, tmp_path / "a", "specforge", max_length=55)
    assert (dropped.rows, dropped.dropped, dropped.cut) == (6, 7, 0)
    cut = write(fleet, tmp_path / "b", "specforge", max_length=50, over="cut")
    # 10 + index prompt ids: 32 supervised ids fit up to index 8, the others are dropped.
    assert (cut.rows, cut.cut, cut.dropped) == (9, 8, 4)
    assert all(sum(row["loss_mask"]) >= 32 for row in lines(tmp_path / "b"))
    assert all(len(row["input_ids"]) <= 50 for row in lines(tmp_path / "b"))


def test_packs_keep_their_boundaries(
    fleet: CommittedRunFixture, record: RunRecord, tmp_path: Path
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    done = write(fleet, tmp_path / "x", "parquet", pack=128)
    packs = parquet.read_table(tmp_path / "x/train-00000.parquet").to_pylist()
    assert all(pack["boundaries"][-1] == len(pack["input_ids"]) <= 128 for pack in packs)
    rows = {
        (index, turn): pack["input_ids"][start:end]
        for pack in packs
        for index, turn, start, end in zip(
            *(pack["indexes"], pack["turns"], pack["boundaries"], pack["boundaries"][1:]),
            strict=False,
        )
    }
    assert rows == {(row.index, row.turn): row.input_ids for row in expected()}
    assert (done.rows, done.supervised) == (13, 520)


def test_a_split_has_a_folder_a_domain(fleet: CommittedRunFixture, tmp_path: Path) -> None:
    record = fleet.enqueue(count=4).record
    domains = ["coding", "", "../up", "a/b"]
    commit(fleet.blobs, record, FIRST, [sample(n, domain=d) for n, d in enumerate(domains)])
    done = write(fleet, tmp_path / "x", "specforge", split_by_domain=True)
    assert {part.name for part in done.shards} == {
        *("coding/train-00000.jsonl", "unnamed/train-00000.jsonl"),
        *("%2E.%2Fup/train-00000.jsonl", "a%2Fb/train-00000.jsonl"),
    }
    assert len(lines(tmp_path / "x")) == 4
    assert not (tmp_path / "up").exists()


def test_a_mix_has_its_shares_and_says_what_is_short(
    fleet: CommittedRunFixture, record: RunRecord, tmp_path: Path
) -> None:
    done = write(fleet, tmp_path / "x", "specforge", mix={"coding": 50.0, "general": 50.0})
    assert {row["domain"]: row["chosen"] for row in done.mix} == {"coding": 120, "general": 120}
    assert done.left_out == {"math": 5}
    assert done.supervised == 240
    mix = {"coding": 3.0, "general": 1.0}
    short = write(fleet, tmp_path / "y", "specforge", mix=mix, mix_tokens=400)
    told = {row["domain"]: row for row in short.mix}
    assert (told["coding"]["quota"], told["coding"]["chosen"]) == (300, 120)
    assert told["coding"]["short"] == 180
    assert (told["general"]["chosen"], told["general"]["short"]) == (80, 0)
    assert short.scarcest == "coding"
    with pytest.raises(UsageError, match="'codign' has no rows"):
        write(fleet, tmp_path / "z", "specforge", mix={"codign": 1.0, "general": 1.0})


@pytest.mark.parametrize(
    ("to", "options"),
    [
        ("specforge", {"pack": 128}),
        ("conversations", {"max_length": 50, "over": "cut"}),
        ("specforge", {"over": "cut"}),
        ("specforge", {"mix_tokens": 5}),
        ("parquet", {"pack": 100, "max_length": 101}),
    ],
)
def test_options_that_cannot_be_meant_are_refused(
    fleet: CommittedRunFixture, record: RunRecord, tmp_path: Path, to: str, options: dict[str, Any]
) -> None:
    with pytest.raises(UsageError):
        write(fleet, tmp_path / "x", to, **options)
    assert not (tmp_path / "x").exists()


def test_the_command_says_what_it_did(
    fleet: CommittedRunFixture, record: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in variables(fleet.settings).items():
        monkeypatch.setenv(name, value)

    def call(*args: str, code: int = 0) -> str:
        result = CliRunner().invoke(root, list(args))
        assert result.exit_code == code, (result.output, result.exception)
        return result.output

    def answer(*args: str) -> Any:
        """What a command with --json says on its output: its progress goes elsewhere."""
        return json.loads(CliRunner().invoke(root, [*args, "--json"]).stdout)

    mixing = ("export", "r", "--to", "specforge", "--out", "x", "--mix", "coding=3,general=1")
    shown = call(*mixing, "--mix-tokens", "400")
    assert "mix: coding: 60.0%, 120 of 120 tokens, quota 300, SHORT by 180" in shown
    assert "mix: coding is the domain that limits the others" in shown
    assert "mix: math has no share: 5 rows left out" in shown
    assert "everything was there already" in call(*mixing, "--mix-tokens", "400")
    assert "asked 500" in call(*mixing, "--mix-tokens", "500", code=2)
    told = answer("export", "r", "--to", "parquet", "--out", "y")
    assert told["rows"] == 13
    for wrong in ("coding", "coding=x", "coding=0", "a=1,a=2", "=inf"):
        assert "is no share" in call(*mixing[:-1], wrong, code=2)
    assert "4 batches written, 13 rows in all" in call("rows", "r")
    assert "4 batches had rows before" in call("rows", "r")
    assert answer("rows", "r", "--hint")["there"] == 4


def test_rows_of_another_commit_are_not_overwritten(
    fleet: CommittedRunFixture, record: RunRecord
) -> None:
    fleet.blobs.put(keys.rows_object("r", FIRST), b"x", {"completions-sha256": "other"})
    with pytest.raises(ConflictError, match="another completions object"):
        write_rows(fleet.blobs, "r", FIRST)
    with pytest.raises(UnknownRunError, match="no run named"):
        write_rows(fleet.blobs, "absent", FIRST)
    assert write_rows(fleet.blobs, "r", "batch-000001.r2") is None
    written = write_rows(fleet.blobs, "r", SECOND)
    assert written is not None
    assert (written.ref.key, written.rows) == (keys.rows_object("r", SECOND), 3)
