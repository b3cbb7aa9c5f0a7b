"""Data that others made: every kind of defect is found, and good rows are left in peace."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import zstandard
from click.testing import CliRunner, Result

from dflashq.cli.root import root
from dflashq.core.errors import UsageError
from dflashq.core.training_data.dataset_checks import KINDS, examine
from dflashq.engine.chat_renderer import ChatRenderer
from dflashq.operations.results.validate import read_markers
from tests.support.paths import TINY_MODEL as TINY

MARKERS = read_markers(TINY)
END = min(MARKERS.end_ids)
OPEN, CLOSE = MARKERS.think_open, MARKERS.think_close
RENDERER = ChatRenderer(TINY)


def ids(text: str) -> list[int]:
    return [int(i) for i in RENDERER._tokenizer.encode(text, add_special_tokens=False)]


def tokens(prompt: str, output: str, **more: Any) -> dict[str, Any]:
    before, after = ids(prompt), ids(output)
    return {"input_ids": before + after, "loss_mask": [0] * len(before) + [1] * len(after), **more}


PROMPT = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n"
PLAIN = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
LONG = "a lamp and a river and a stone and a window and a letter and an engine and a bridge"
GOOD = tokens(PROMPT, f"{LONG}\n</think>\n\nThe answer is {LONG}.<|im_end|>")
STUB = tokens(PLAIN, "<think>\n\n</think>\n\n<|im_end|>\n")


def kinds(row: object) -> set[str]:
    return set(examine(row, MARKERS, 32).kinds)


def test_the_markers_from_the_files_are_those_of_the_renderer() -> None:
    theirs = RENDERER.markers()
    assert MARKERS.end_ids == theirs.end_ids
    assert (theirs.think_open, theirs.think_close) == (OPEN, CLOSE)
    assert MARKERS.blank_ids == theirs.blank_ids


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (GOOD, set()),
        (tokens(PLAIN, f"<think>\n{LONG}\n</think>\n\n{LONG}<|im_end|>\n"), set()),
        (STUB, {"stub", "empty_answer", "empty_think"}),
        (tokens(PROMPT, f"{LONG} {LONG}\n</think>\n\n<|im_end|>"), {"empty_answer"}),
        (tokens(PROMPT, f"{LONG}\n</think>\n\n{LONG}"), {"truncated"}),
        (tokens(PROMPT, f"{LONG} {LONG}<|im_end|>"), {"orphan_think"}),
        (tokens(PROMPT, f"{LONG}\n</think>\n\n{LONG}</think>x<|im_end|>"), {"orphan_think"}),
        (tokens(PLAIN, f"{LONG}\n</think>\n\n{LONG}<|im_end|>"), {"orphan_think"}),
        ({**GOOD, "metadata": {"finish_reason": "length"}}, {"truncated"}),
        ({**GOOD, "loss_mask": [0] * len(GOOD["input_ids"])}, {"all_zero_mask"}),
        ({**GOOD, "loss_mask": GOOD["loss_mask"][1:]}, {"bad_ids"}),
        ({**GOOD, "loss_mask": [2] * len(GOOD["input_ids"])}, {"bad_ids"}),
        ({**GOOD, "input_ids": [0.5] * len(GOOD["input_ids"])}, {"bad_ids"}),
        ({"input_ids": [1, 2]}, {"bad_ids"}),
        ({"input_ids": [GOOD["input_ids"]], "loss_mask": [GOOD["loss_mask"]]}, set()),
        ({"prompt": "x"}, {"no_row"}),
        ([1], {"no_row"}),
    ],
)
def test_token_rows(row: object, expected: set[str]) -> None:
    assert kinds(row) == expected


def test_an_isolated_mask_is_told_from_a_short_one() -> None:
    row = {"input_ids": list(range(8)), "loss_mask": [0, 1, 0, 1, 0, 1, 0, 1]}
    assert set(examine(row, None, 1).kinds) == {"isolated_mask"}
    row["loss_mask"] = [0, 0, 0, 0, 0, 0, 1, 1]
    assert set(examine(row, None, 3).kinds) == {"stub"}
    assert set(examine(row, None, 2).kinds) == set()


def chat(content: str | None, name: str = "conversations", **more: Any) -> dict[str, Any]:
    answer = {"role": "assistant", "content": content, **more.pop("message", {})}
    return {"id": "1", name: [{"role": "user", "content": "hi"}, answer], **more}


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (chat("An answer."), set()),
        (chat("<think>\nhm\n</think>\n\nAn answer."), set()),
        (chat("An answer.", message={"reasoning_content": "hm"}), set()),
        (chat("", message={"tool_calls": [{"function": {"name": "f"}}]}), set()),
        (chat("An answer.", "messages", text="An answer."), set()),
        (
            {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]},
            set(),
        ),
        (chat(""), {"empty_answer"}),
        (chat(None), {"empty_answer"}),
        (chat("", message={"tool_calls": "[]"}), {"empty_answer"}),
        (chat("  \n", message={"reasoning_content": "hm"}), {"empty_answer"}),
        (chat("<think>\n\n</think>\n\n"), {"empty_answer", "empty_think"}),
        (chat("<think>\nhm\n</think>\n\n"), {"empty_answer"}),
        (chat("hm\n</think>\n\nAn answer."), {"orphan_think"}),
        (chat("<think>hm"), {"orphan_think"}),
        (chat("</think><think>An answer."), {"orphan_think"}),
        (chat("<think>a</think>b<think>c</think>d"), {"orphan_think"}),
        (chat("<think>a</think>b", message={"reasoning_content": "a"}), {"orphan_think"}),
        (chat("Cut", finish_reason="length"), {"truncated"}),
        (chat("Cut", status="error"), {"failed"}),
        (chat("Fine", status="success"), set()),
        (chat("Fine", error="timeout"), {"failed"}),
        (chat("Fine", max_length=4096), {"misread_key"}),
        ({"messages": [{"role": "user", "content": "q"}]}, {"no_assistant"}),
    ],
)
def test_conversations(row: object, expected: set[str]) -> None:
    assert kinds(row) == expected


def write(path: Path, rows: list[Any]) -> Path:
    body = "".join(json.dumps(row) + "\n" for row in rows).encode()
    if path.suffix == ".gz":
        body = gzip.compress(body)
    elif path.suffix == ".zst":
        body = zstandard.compress(body)
    path.write_bytes(body)
    return path


def call(*args: str | Path, code: int = 0) -> Result:
    result = CliRunner().invoke(root, ["validate", *map(str, args)])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def good(number: int) -> dict[str, Any]:
    return tokens(PROMPT, f"{LONG}\n</think>\n\n{LONG} {'and ' * number}{number}.<|im_end|>")


def test_a_flood_of_stubs_is_told_by_length_and_share(tmp_path: Path) -> None:
    """The case that dflashq was made for: 87 % of rows with a supervised length of 6."""
    rows = [STUB] * 87 + [good(n) for n in range(13)]
    length = sum(STUB["loss_mask"])
    result = call(write(tmp_path / "x.jsonl", rows), "--tokenizer", TINY, code=1)
    assert f"87% of rows have a length of exactly {length} supervised tokens" in result.stdout
    for kind in ("stub", "empty_think", "same_length", "repeated"):
        assert f"FAILED {kind}: {KINDS[kind]}" in result.stdout
    told = json.loads(call(tmp_path / "x.jsonl", "--json", code=1).stdout)
    assert told["commonest_length"] == {"length": length, "share": 0.87}
    assert told["kinds"]["stub"]["rows"] == 87
    assert "empty_think" not in told["kinds"], "without a tokenizer nobody can know"


@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz", "x.jsonl.zst"])
def test_good_rows_pass_however_they_are_packed(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, [good(n) for n in range(20)])
    result = call(path, "--tokenizer", TINY)
    assert "20 rows in 1 file: 20 tokens" in result.stdout
    assert "passed" in result.stdout


def test_a_limit_can_be_moved(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", [*(chat(f"Answer {n}.") for n in range(9)), chat("")])
    assert "FAILED empty_answer" in call(path, code=1).stdout
    call(path, "--limit", "empty_answer=0.1")
    call(path, "--limit", "empty_answer=much", code=2)
    assert "there is no kind 'emtpy'" in call(path, "--limit", "emtpy=0.1", code=2).output


def test_a_folder_is_read_whole_and_bad_lines_are_told(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [good(1)])
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/b.jsonl").write_text(json.dumps(good(2)) + "\n{oops\n")
    (tmp_path / "notes.txt").write_text("no data")
    (tmp_path / "export.json").write_text("{}")
    told = json.loads(call(tmp_path, "--json", code=1).stdout)
    assert told["rows"] == 3
    assert told["kinds"]["bad_json"]["examples"] == [f"{tmp_path / 'deep/b.jsonl'}:2"]
    assert told["failed"] == ["bad_json"]


def test_nothing_to_read_is_a_usage_error(tmp_path: Path) -> None:
    assert "there is no" in call(tmp_path / "absent", code=2).output
    assert "holds no file" in call(tmp_path, code=2).output
    write(tmp_path / "empty.jsonl", [])
    assert "has no rows" in call(tmp_path, code=2).output
    with pytest.raises(UsageError, match=r"no tokenizer\.json"):
        read_markers(tmp_path)
