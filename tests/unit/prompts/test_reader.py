"""Prompt files of every odd kind, read from files that are on disk."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from dflashq.core.errors import InputError
from dflashq.prompts import json_stream, jsonl
from dflashq.prompts import records as records_module
from dflashq.prompts.jsonl import MalformedRecord, line_records
from dflashq.prompts.reader import PromptRow, read_prompts
from dflashq.prompts.records import records
from tests.support.paths import GOLDEN

PROMPT_FILES = GOLDEN / "prompts"
THREE = [
    (1, "How warm is a summer day?"),
    (2, "Was heißt „Brücke“? \u2028 ж 🙂"),
    (3, "Third\r\nquestion"),
]


MAGICS = [
    b"",
    b"\x1f\x8b",
    b"\x28\xb5\x2f\xfd",
    b"\xff\xfe",
    b"\xfe\xff",
    b"\xef\xbb\xbf",
    b"[",
    b"{",
]


def rows_of(name: str) -> list[PromptRow]:
    return list(read_prompts(PROMPT_FILES / name))


def asked(name: str) -> list[tuple[int, str]]:
    """(line, first text) of all rows, none of which may be rejected."""
    out = []
    for row in rows_of(name):
        assert row.outcome.row is not None, row
        out.append((row.line, row.outcome.row["messages"][0]["content"]))
    return out


def ends(name: str) -> list[tuple[int, str]]:
    """(line, "accept" or the first reason) of all rows."""
    return [(r.line, (*r.outcome.why, r.outcome.do)[0]) for r in rows_of(name)]


@pytest.mark.parametrize(
    "name", ["plain.jsonl", "named-wrongly.txt", "bom-crlf.jsonl", "utf16.jsonl"]
)
def test_the_same_rows_whatever_the_wrapping(name: str) -> None:
    assert asked(name) == THREE


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("two-members.jsonl.gz", [(1, "one"), (2, "two")]),
        ("two-frames.jsonl.zst", [(1, "one"), (2, "two")]),
        ("blank-lines.jsonl", [(3, "first"), (6, "second")]),
        ("array-minified.jsonl", [(1, "one"), (2, "two")]),
        ("pretty-one.json", [(1, "only")]),
        ("pretty-many.jsonl", [(1, "one"), (14, "two")]),
        ("no-final-newline.jsonl", [(1, "one"), (2, "two")]),
    ],
)
def test_containers(name: str, expected: list[tuple[int, str]]) -> None:
    assert asked(name) == expected


@pytest.mark.parametrize("opened", ["[", '{"x": '])
def test_nesting_has_one_bound_in_every_version_of_python(opened: str) -> None:
    closed = {"[": "]", '{"x": ': "}"}[opened]

    def value_of(levels: int) -> object:
        text = f"{opened * levels}1{closed * levels}\n".encode()
        (record,) = line_records(text, iter(()))
        return record.value

    assert not isinstance(value_of(jsonl.MAX_DEPTH), MalformedRecord)
    assert value_of(jsonl.MAX_DEPTH + 1) == ("invalid_json", "nested too deep")
    wide = ("[" + "[[]]," * 1000 + "1]\n").encode()
    (record,) = line_records(wide, iter(()))
    assert isinstance(record.value, list)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("array.json", [(1, "accept"), (2, "accept"), (3, "unknown_schema")]),
        ("array-not-closed.json", [(1, "accept"), (2, "truncated_line")]),
        ("bad-utf8.jsonl", [(1, "accept"), (2, "invalid_utf8"), (3, "accept")]),
        ("truncated.jsonl", [(1, "accept"), (2, "truncated_line")]),
        ("deep.jsonl", [(1, "accept"), (2, "invalid_json")]),
        (
            "garbage.jsonl",
            [
                (1, "invalid_json"),
                (2, "accept"),
                (3, "invalid_json"),
                *((n, "not_an_object") for n in (4, 5, 6, 7)),
                *((n, "invalid_json") for n in (8, 9, 10)),
                (11, "accept"),
            ],
        ),
    ],
)
def test_bad_rows_are_told_and_the_rest_is_read(name: str, expected: list[Any]) -> None:
    assert ends(name) == expected


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("empty.jsonl", "no rows"),
        ("only-blank.jsonl", "no rows"),
        ("all-rejected.jsonl", "3 rejected (unknown_schema 2, bad_content_type 1)"),
        ("cut-short.jsonl.gz", "cut short"),
        ("cut-short.jsonl.zst", "cut short"),
        ("utf16-no-mark.jsonl", "UTF-16"),
        ("array-broken.json", "behind element 1 (line 3)"),
        ("not-there.jsonl", "No such file"),
        (".", "Is a directory"),
    ],
)
def test_a_file_that_cannot_be_used_fails_by_name(name: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        rows_of(name)
    assert str(PROMPT_FILES / name) in str(caught.value)
    assert words in str(caught.value)


def written(tmp_path: Path, body: bytes) -> Path:
    path = tmp_path / "p"
    path.write_bytes(body)
    return path


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"PAR1 and so on", "Parquet"),
        (b"PK\x03\x04zip", "zip"),
        (b"BZh9", "bzip2"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "LFS"),
        (gzip.compress(b'{"prompt": "q"}\n', mtime=0) + b"garbage", "gzip"),
        (b"\x1f\x8b\x08\x00nonsense", "gzip"),
        (b"\x28\xb5\x2f\xfdnonsense and more of it", "zstd"),
        (b"\xff\xfe{\x00\x00\xd8{\x00", "utf-16-le"),
        (b"\xff\xfe{\x00}", "utf-16-le"),
        (b'[{"prompt": "q"}]\n and more', "no rows"),
        (b'[\n{"prompt": "q"},\n{"prompt": "r"}\n]\n and more', "closing bracket"),
        (b'[\n{"prompt": "q"},\n{"prompt": "r"}\n{"prompt": "s"}\n]', "behind element 2"),
    ],
)
def test_foreign_and_broken_files_fail(tmp_path: Path, body: bytes, words: str) -> None:
    with pytest.raises(InputError, match=words):
        list(read_prompts(written(tmp_path, body)))


def test_a_file_without_the_right_to_read_fails(tmp_path: Path) -> None:
    path = written(tmp_path, b'{"prompt": "q"}\n')
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    with pytest.raises(InputError, match="Permission denied"):
        list(read_prompts(path))


@pytest.mark.parametrize(
    "body",
    [
        '{"prompt": "q"}\n'.encode("utf-16"),
        '{"prompt": "q"}\n'.encode("utf-32"),
        b"\x50\x2a\x4d\x18\x04\x00\x00\x00skip" + zstandard.compress(b'{"prompt": "q"}\n'),
        b'\xef\xbb\xbf{"prompt": "q"}',
        b'\n\xef\xbb\xbf{"prompt": "q"}\n',
        b'[{"prompt": "q"}]',
        b'[{"prompt": "q"}]\n\n',
        b' \n[\n{"prompt": "q"}\n]',
        b'{\n"prompt"\n:"q"}',
    ],
    ids=repr,
)
def test_one_prompt_however_it_is_written(tmp_path: Path, body: bytes) -> None:
    (row,) = read_prompts(written(tmp_path, body))
    assert row.outcome.do == "accept"
    assert row.outcome.row is not None
    assert row.outcome.row["messages"] == [{"role": "user", "content": "q"}]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'[{"role": "user"}]\n{"prompt": "q"}\n', [(1, "not_an_object"), (2, "accept")]),
        (b'{"prompt": "q",\n{"prompt": "q"}\n', [(1, "invalid_json"), (2, "accept")]),
        (b'[1\n{"prompt": "q"}\n', [(1, "invalid_json"), (2, "accept")]),
        (
            b'{\n"prompt": "q"\n}\nlog line\n{\n"prompt": "q"\n}',
            [(1, "accept"), (4, "invalid_json"), (5, "accept")],
        ),
        (
            b'{\n"prompt": "q"\n}\n{\n"prom',
            [(1, "accept"), (4, "invalid_json"), (5, "truncated_line")],
        ),
        (
            b'[{"prompt": "q"}, {"prompt": NaN}, {"prompt": '
            + b"9" * 5000
            + b'}, {"prompt": "q"}]',
            [(1, "accept"), (2, "invalid_json"), (3, "invalid_json"), (4, "accept")],
        ),
        (
            b'[\n{"prompt": "q"},\n{"prompt": "\xff"},\n"x"\n]',
            [(1, "accept"), (2, "invalid_utf8"), (3, "not_an_object")],
        ),
        (b'[{"prompt": "q"},\n', [(1, "accept"), (2, "truncated_line")]),
        (
            b'[\n{"prompt": "q"},\n{"prompt": "q"}\n',
            [(1, "accept"), (2, "accept"), (3, "truncated_line")],
        ),
    ],
    ids=repr,
)
def test_looking_tells_the_container(tmp_path: Path, body: bytes, expected: list[Any]) -> None:
    path = written(tmp_path, body)
    assert [(r.line, (*r.outcome.why, r.outcome.do)[0]) for r in read_prompts(path)] == expected


def test_a_repeated_id_on_another_prompt_is_counted(tmp_path: Path) -> None:
    given_rows = [("x", "q"), ("x", "q"), ("x", "r"), ("7", "q"), ("7", "r"), (None, "q")]
    body = "".join(json.dumps({"id": i, "prompt": p}) + "\n" for i, p in given_rows)
    outcomes = [r.outcome for r in read_prompts(written(tmp_path, body.encode()))]
    assert [o.why for o in outcomes[:5]] == [(), (), ("duplicate_id",), (), ()]
    assert outcomes[2].row is not None
    assert outcomes[2].row["id"] == "x"


def pieces(body: bytes, size: int) -> Any:
    return iter([body[i : i + size] for i in range(0, len(body), size)])


@given(st.binary(max_size=300) | st.text(alphabet='{}[]":,a1\\ \n\r\ufeff').map(str.encode))
def test_any_bytes_are_accounted_for_once(body: bytes) -> None:
    """As lines: every line that is not blank gives one record, under its own number."""
    expected = {
        n: line for n, line in enumerate(body.split(b"\n"), 1) if line and not line.isspace()
    }
    got = list(line_records(b"", pieces(body, 7)))
    assert {r.line: r.raw for r in got} == expected
    assert len(got) == len(expected)


@given(
    st.binary(max_size=300) | st.text(alphabet='{}[]":,a1\\ \n\r\ufeff').map(str.encode),
    st.integers(1, 9),
)
def test_any_bytes_never_crash_the_reader(body: bytes, size: int) -> None:
    failure, got = None, []
    try:
        got = list(records("name", pieces(body, size)))
    except InputError as exc:
        failure = str(exc)
    assert failure is None or failure.startswith("name is a JSON array")
    filled = [line for line in body.split(b"\n") if line and not line.isspace()]
    assert got or failure or not filled or not body.strip(b" \t\r\n\xef\xbb\xbf[]")


@given(st.sampled_from(MAGICS), st.binary(max_size=200))
def test_any_file_gives_rows_or_one_error(
    tmp_path_factory: pytest.TempPathFactory, magic: bytes, body: bytes
) -> None:
    path = written(tmp_path_factory.mktemp("any"), magic + body + b'\n{"prompt": "q"}\n')
    try:
        rows = list(read_prompts(path))
    except InputError as exc:
        rows, failure = [], str(exc)
        assert failure.count(str(path)) == 1
    assert rows or failure


values = st.dictionaries(st.text(max_size=4), st.text(max_size=30) | st.integers(), max_size=3)


@given(st.lists(values, min_size=1, max_size=6), st.sampled_from([None, 0, 2]), st.integers(1, 40))
def test_an_array_gives_its_elements(rows: list[Any], indent: int | None, size: int) -> None:
    body = json.dumps(rows, indent=indent).encode()
    got = list(records("name", pieces(body, size)))
    assert [r.value for r in got] == rows
    assert [r.line for r in got] == list(range(1, len(rows) + 1))
    assert [json.loads(r.raw) for r in got] == rows


@given(st.lists(values, min_size=1, max_size=6), st.integers(1, 40))
def test_pretty_objects_give_their_first_lines(rows: list[Any], size: int) -> None:
    texts = [json.dumps(row, indent=2) for row in [{"first": 1}, *rows]]
    got = list(records("name", pieces("\n".join(texts).encode(), size)))
    assert [r.value for r in got] == [{"first": 1}, *rows]
    starts = [1 + sum(t.count("\n") + 1 for t in texts[:n]) for n in range(len(texts))]
    assert [r.line for r in got] == starts


@pytest.mark.parametrize("opening", [b"[\n", b""])
def test_values_larger_than_the_lookahead(opening: bytes) -> None:
    rows = [{"prompt": "x" * n} for n in (10, 3 * json_stream.LOOKAHEAD, 5)]
    text = ",\n".join(json.dumps(r, indent=1) for r in rows)
    body = b"[\n" + text.encode() + b"\n]" if opening else text.replace("},", "}").encode()
    got = list(records("name", pieces(body, 100_000)))
    assert [r.value for r in got] == rows


def test_a_first_element_larger_than_the_lookahead() -> None:
    rows = [{"prompt": "x" * 3 * json_stream.LOOKAHEAD}, {"prompt": "y"}]
    assert [r.value for r in records("n", pieces(json.dumps(rows).encode(), 99_999))] == rows
    body = b"".join(json.dumps(r).encode() + b"\n" for r in rows)
    assert [r.value for r in records("n", pieces(body, 99_999))] == rows


def test_a_line_over_the_limit_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "MAX_RECORD", 1000)
    monkeypatch.setattr(records_module, "LOOKAHEAD", 50)
    body = b'{"a": 1}\n"' + b"x" * 5000 + b'"\n{"b": 2}\n"' + b"y" * 5000
    got = list(records("n", pieces(body, 100)))
    assert [r.line for r in got] == [1, 2, 3, 4]
    assert [type(r.value) is MalformedRecord for r in got] == [False, True, False, True]
    assert isinstance(got[1].value, MalformedRecord)
    assert got[1].value.why == "line_too_long"
