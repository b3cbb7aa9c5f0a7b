"""The spool: batches on disk, counted and hashed, the same for the same input."""

from __future__ import annotations

import base64
import gzip
import hashlib
import importlib.util
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflashq.core.codec import decode_rows, decompress, sha256
from dflashq.core.errors import InputError
from dflashq.core.model import Prompt
from dflashq.prompts.batches import PreparedBatches, spooled
from tests.support.paths import ROOT

GOLDEN = ROOT / "tests" / "golden" / "prompts"
DEMO = ROOT / "scripts" / "demo-prompts.jsonl"


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def prompts(prepared: PreparedBatches) -> list[dict[str, Any]]:
    return [row for batch in prepared.batches for row in decode_rows(batch.path.read_bytes())]


def write(path: Path, count: int, start: int = 0) -> Path:
    rows = ({"id": f"p{n}", "prompt": f"q{n}"} for n in range(start, start + count))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_batches_cover_all_files_in_order(tmp_path: Path) -> None:
    files = [write(tmp_path / "a", 7), write(tmp_path / "b", 5, start=7)]
    with spooled(files, rejected_path=tmp_path / "r", batch_size=5) as prepared:
        assert [(b.name, b.prompts, b.first, b.last) for b in prepared.batches] == [
            ("batch-000000", 5, 0, 4),
            ("batch-000001", 5, 5, 9),
            ("batch-000002", 2, 10, 11),
        ]
        rows = prompts(prepared)
        assert [(r["index"], r["id"]) for r in rows] == [(n, f"p{n}") for n in range(12)]
        assert Prompt.from_json(rows[3]).turns == 1
        for batch in prepared.batches:
            assert sha256(batch.path.read_bytes()) == batch.sha256
        text = b"".join(decompress(b.path.read_bytes()) for b in prepared.batches)
        assert prepared.prompts_sha256 == hashlib.sha256(text).hexdigest()
        assert (prepared.prompts, prepared.counts, prepared.reasons) == (12, {"accept": 12}, {})
        assert prepared.rejected_path is None
        folder = prepared.records_path.parent
    assert not folder.exists()
    assert not (tmp_path / "r").exists()


def test_a_full_last_batch_leaves_no_empty_one(tmp_path: Path) -> None:
    with spooled(
        [write(tmp_path / "a", 6)], rejected_path=tmp_path / "r", batch_size=3
    ) as prepared:
        assert [b.prompts for b in prepared.batches] == [3, 3]


def test_the_hash_of_the_prompts_does_not_know_the_batches(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole", 10)
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(whole.read_bytes()))
    hashes = set()
    for files, size in (([whole], 10), ([whole], 3), ([packed], 4)):
        with spooled(files, rejected_path=tmp_path / "r", batch_size=size) as prepared:
            hashes.add(prepared.prompts_sha256)
    assert len(hashes) == 1
    with spooled([write(tmp_path / "other", 9)], rejected_path=tmp_path / "r") as prepared:
        assert prepared.prompts_sha256 not in hashes


def test_a_limit_stops_the_reading(tmp_path: Path) -> None:
    files = [write(tmp_path / "a", 20), GOLDEN / "empty.jsonl"]
    with spooled(files, rejected_path=tmp_path / "r", batch_size=5, limit=8) as prepared:
        assert [(b.prompts, b.first, b.last) for b in prepared.batches] == [(5, 0, 4), (3, 5, 7)]


def domains_file(path: Path, domains: str) -> Path:
    rows = ({"id": str(n), "prompt": f"q{n}", "domain": d} for n, d in enumerate(domains))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read_batches(prepared: PreparedBatches) -> list[list[dict[str, object]]]:
    return [list(decode_rows(batch.path.read_bytes())) for batch in prepared.batches]


def test_the_canary_is_drawn_over_all_domains_and_comes_first(tmp_path: Path) -> None:
    file = domains_file(tmp_path / "d", "a" * 30 + "b" * 5 + "c")
    with spooled([file], rejected_path=tmp_path / "r", batch_size=10, canary=6) as prepared:
        canary, *others = read_batches(prepared)
        assert Counter(row["domain"] for row in canary) == {"a": 3, "b": 2, "c": 1}
        assert [batch.name for batch in prepared.batches] == [
            f"batch-{number:06d}" for number in range(4)
        ]
        assert [(b.first, b.last) for b in prepared.batches] == [
            (0, 5),
            (6, 15),
            (16, 25),
            (26, 35),
        ]
        rows = [row for batch in (canary, *others) for row in batch]
        assert [row["index"] for row in rows] == list(range(36))
        assert sorted(int(str(row["id"])) for row in rows) == list(range(36))


@given(st.text("abcd", min_size=1, max_size=60), st.integers(1, 12), st.integers(1, 12))
def test_a_canary_loses_and_doubles_nothing(domains: str, canary: int, batch_size: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = domains_file(folder / "d", domains)
        with spooled(
            [file], rejected_path=folder / "r", batch_size=batch_size, canary=canary
        ) as prepared:
            batches = read_batches(prepared)
            rows = [row for batch in batches for row in batch]
            assert [row["index"] for row in rows] == list(range(len(domains)))
            assert sorted(int(str(row["id"])) for row in rows) == list(range(len(domains)))
            assert len(batches[0]) == min(canary, batch_size, len(domains))
            firsts = {row["domain"] for row in batches[0]}
            assert len(firsts) == min(len(set(domains)), len(batches[0]))


def test_what_was_not_plainly_accepted_is_on_record(tmp_path: Path) -> None:
    name = GOLDEN / "bad-utf8.jsonl"
    odd = tmp_path / "odd.jsonl"
    odd.write_text('{"id": 3, "prompt": "q", "domain": "math"}\n{"prompt": 7}\n')
    kept = tmp_path / "new" / "rejected.jsonl"
    with spooled([name, odd], rejected_path=kept) as prepared:
        assert prepared.counts == {"accept": 2, "normalise": 1, "reject": 2}
        assert prepared.reasons == {
            "reject": {"invalid_utf8": 1, "bad_content_type": 1},
            "normalise": {"id_not_a_plain_string": 1},
        }
        assert prepared.domains == {"": 2, "math": 1}
        assert [
            (r["file"], r["line"], r["do"], r["why"]) for r in lines(prepared.records_path)
        ] == [
            (str(name), 2, "reject", ["invalid_utf8"]),
            (str(odd), 1, "normalise", ["id_not_a_plain_string"]),
            (str(odd), 2, "reject", ["bad_content_type"]),
        ]
        assert prepared.rejected_path == kept
    first, second = lines(kept)
    assert (first["file"], first["line"], first["why"]) == (str(name), 2, "invalid_utf8")
    assert base64.b64decode(first["raw_base64"]) == name.read_bytes().split(b"\n")[1]
    assert second["raw"] == '{"prompt": 7}'


def test_ids_are_compared_across_files(tmp_path: Path) -> None:
    (tmp_path / "a").write_text('{"id": "x", "prompt": "q"}\n')
    (tmp_path / "b").write_text('{"id": "x", "prompt": "r"}\n')
    with spooled([tmp_path / "a", tmp_path / "b"], rejected_path=tmp_path / "r") as prepared:
        assert prepared.reasons == {"normalise": {"duplicate_id": 1}}
        assert [(p["index"], p["id"]) for p in prompts(prepared)] == [(0, "x"), (1, "x")]


def test_a_file_with_nothing_usable_fails_and_tells_where_its_rows_are(tmp_path: Path) -> None:
    good, kept = write(tmp_path / "good", 3), tmp_path / "rejected.jsonl"
    spools = tmp_path / "spools"
    spools.mkdir()
    with (
        pytest.raises(InputError, match="no rows") as caught,
        spooled([good, GOLDEN / "all-rejected.jsonl"], rejected_path=kept, folder=spools),
    ):
        pytest.fail("the context must not open")
    assert str(kept) in str(caught.value)
    assert [line["line"] for line in lines(kept)] == [1, 2, 3]
    assert list(spools.iterdir()) == []


def test_no_files_are_no_rows(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no rows"), spooled([], rejected_path=tmp_path / "r"):
        pytest.fail("the context must not open")


def test_a_place_that_cannot_be_written_fails_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(InputError, match="cannot be written"),
        spooled([GOLDEN / "bad-utf8.jsonl"], rejected_path=tmp_path / "file" / "r"),
    ):
        pytest.fail("the context must not open")


def test_a_file_name_that_is_no_utf8(tmp_path: Path) -> None:
    path = Path(f"{tmp_path}/odd-\udcff.jsonl")
    path.write_text('{"id": 1, "prompt": "q"}\n')
    with spooled([path], rejected_path=tmp_path / "r") as prepared:
        assert lines(prepared.records_path)[0]["file"].endswith("odd-\ufffd.jsonl")


def test_the_demo_prompts(tmp_path: Path) -> None:
    with spooled([DEMO], rejected_path=tmp_path / "r") as prepared:
        assert prepared.counts == {"accept": 38, "reject": 2}
        assert prepared.reasons == {"reject": {"unknown_role": 1, "invalid_json": 1}}
        assert set(prepared.domains) == {"coding", "general", "math", "agent", "code-other"}
        rows = prompts(prepared)
        assert sum("tools" in row for row in rows) == 2
        assert sum(Prompt.from_json(row).turns > 1 for row in rows) == 5


def test_the_script_writes_the_same_prompts_again(tmp_path: Path) -> None:
    place = ROOT / "scripts" / "make_prompts.py"
    spec = importlib.util.spec_from_file_location("make_prompts", place)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    rows = list(script.conversations(500))
    assert rows == list(script.conversations(500))
    assert len({row["conversations"][0]["value"] for row in rows}) == 500
    out = tmp_path / "out.jsonl"
    subprocess.run([sys.executable, place, "500", out], check=True, capture_output=True)
    assert lines(out) == rows
    with spooled([out], rejected_path=tmp_path / "r") as prepared:
        assert prepared.counts == {"accept": 500}


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """Peak memory of a process that spools 20,000 rows, and of one that spools 100,000."""
    code = (
        "import re, sys; from pathlib import Path; "
        "from dflashq.prompts.batches import spooled\n"
        "with spooled([Path(sys.argv[1])], rejected_path=Path(sys.argv[2])) as spool: "
        "status = Path('/proc/self/status').read_text(); "
        "print(spool.prompts, re.search(r'VmHWM:\\s+(\\d+)', status)[1])"
    )
    peaks = []
    for count in (20_000, 100_000):
        file = write(tmp_path / f"{count}", count)
        done = subprocess.run(
            [sys.executable, "-c", code, file, tmp_path / "r"],
            check=True,
            capture_output=True,
            text=True,
            cwd=ROOT,
        )
        spooled_count, peak = map(int, done.stdout.split())
        assert spooled_count == count
        peaks.append(peak)
    # Only the table of ids grows: 16 bytes a slot, at most doubled. VmHWM is in KiB, and unlike
    # ru_maxrss begins anew with the program.
    assert peaks[1] - peaks[0] < 12 * 1024
    assert peaks[1] < 200 * 1024
