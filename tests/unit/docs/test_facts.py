"""The documents say what the code does: settings, commands, options, exit codes, stored names."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click
import pytest
from pydantic_core import PydanticUndefined

from dflashq.cli.root import COMMANDS, root
from dflashq.config import Settings
from dflashq.core import codec, errors, keys
from dflashq.core.generations.checks import REASONS
from dflashq.core.generations.sample_rows import generation_row, sample_row
from dflashq.core.model import Generation, ObjectRef, Prompt
from dflashq.core.training_data.parquet import ROW_COLUMNS
from dflashq.engine.profiles import known_profiles
from tests.support.paths import ROOT
from tests.unit.docs import documents
from workers import bootsteps

OPERATING = documents.text_of("docs/operating.md")
PRELUDE = ROOT / "dflashq" / "ledger" / "lua" / "prelude.lua"
WIRE = documents.text_of("docs/wire-formats.md")
CALLS = [
    (documents.name_of(path), call)
    for path, text in documents.TEXTS.items()
    for block in documents.code(text)
    for call in re.findall(r"(?:^|\s)dflashq ([a-z][^`\n|]*)", re.sub(r"#.*", "", block))
]


def settings_table() -> dict[str, tuple[str, str]]:
    rows = re.findall(
        r"^\| `DFLASHQ_(\w+)` \| (?:`([^`]*)`)? *\| (.+) \|$", OPERATING, re.MULTILINE
    )
    return {name.lower(): (default, meaning) for name, default, meaning in rows}


def shown(value: object) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else f"{value:g}"


def command(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that these words call, and the words behind its name."""
    context = click.Context(root)
    called: click.Command = root
    while words and isinstance(called, click.Group) and not words[0].startswith("-"):
        inner = called.get_command(context, words[0])
        assert inner is not None, f"there is no command {words[0]!r} in {words}"
        called, words = inner, words[1:]
    return called, words


def test_the_settings_table_is_the_settings() -> None:
    table = settings_table()
    assert set(table) == set(Settings.model_fields)
    for name, field in Settings.model_fields.items():
        default, meaning = table[name]
        assert meaning == field.description, name
        if field.default is PydanticUndefined:
            assert default.startswith(("~/", "/tmp/")), name
        elif isinstance(field.default, str):
            assert default == field.default, name
        else:
            assert default == shown(field.default), name


def test_every_command_and_option_in_the_documents_exists() -> None:
    assert len(CALLS) > 40
    for document, call in CALLS:
        called, rest = command(call.split())
        known = {option for param in called.params for option in param.opts + param.secondary_opts}
        for word in rest:
            if word.startswith("--"):
                assert word.partition("=")[0] in known | {"--help"}, (document, call)


def test_every_command_is_in_the_guide_and_in_the_readme() -> None:
    for document in ("docs/operating.md", "README.md"):
        assert {call.split()[0] for name, call in CALLS if name == document} == set(COMMANDS)


def test_every_setting_in_the_documents_exists() -> None:
    for path, text in documents.TEXTS.items():
        names = {name.lower() for name in re.findall(r"DFLASHQ_(\w+)", text)}
        assert names <= set(Settings.model_fields), documents.name_of(path)


def test_every_profile_and_reason_is_documented() -> None:
    for name in known_profiles():
        assert f"`{name}`" in OPERATING, name
    for name in REASONS:
        assert f"`{name}`" in documents.text_of("docs/data.md"), name


def exit_codes(text: str) -> set[int]:
    """The codes in the first column of a table of exit codes."""
    cells = re.findall(r"^\| ([\d, ]+) \|", text, re.MULTILINE)
    return {int(code) for cell in cells for code in cell.split(",")}


def test_every_exit_code_is_documented() -> None:
    section = OPERATING[OPERATING.index("### Exit codes") :]
    section = section[: section.index("\n## ")]
    of_errors = {
        kind.exit_code
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.DflashqError)
    }
    assert exit_codes(section) == {0, 3, 130} | of_errors
    help_text = re.sub(r"\s+", " ", root.help or "")
    assert exit_codes(section) == {int(code) for code in re.findall(r"(\d+) \w+[,.]", help_text)}
    workers = OPERATING[OPERATING.index("| a worker exits with") :]
    workers = workers[: workers.index("\n\n")]
    assert exit_codes(workers) == {0, 1, 2, bootsteps.ENGINE_LOST, bootsteps.FRESH_START}


def test_the_wire_formats_name_every_key_and_field() -> None:
    names = {
        *(value for name, value in vars(keys).items() if name.isupper() and isinstance(value, str)),
        *re.findall(r"^--\s+\d (\w+) ", PRELUDE.read_text(), re.MULTILINE),
        *ObjectRef("k", "s", "f").to_json(),
        *Generation([1], [2], "stop").to_json(),
        *generation_row(Generation([1], [2], "stop")),
        *sample_row(Prompt(0, "i", []), [], [], 0, 1),
        *ROW_COLUMNS,
    }
    spans = set(re.findall(r"`([^`\n]+)`", WIRE))
    # Nothing reads the epoch, which stands in a Redis that an older version has used.
    assert names - spans - {keys.NAMESPACE, f"{keys.NAMESPACE}:epoch"} == set()


def test_the_wire_formats_name_every_object() -> None:
    digest = "ab" * 32
    named = (
        keys.run_json("RUN"),
        keys.state_json("RUN"),
        keys.prompts_object("RUN", "BATCH", digest),
        keys.completions_object("RUN", "BATCH"),
        keys.rejected_object("RUN", "BATCH", digest),
        keys.rows_object("RUN", "BATCH"),
        keys.revision_json("RUN", "BATCH"),
        keys.engine_object("RUN", "ID"),
        keys.truth_json("RUN"),
        keys.quarantine_object("RUN", "BATCH", digest),
        keys.manifest_json("RUN"),
        keys.progress_json("RUN"),
    )
    for name in named:
        assert f"| `{name.replace(digest[:16], 'SHA16')}` |" in WIRE


def generation() -> Generation:
    return Generation([1, 2], [3, 4], "stop", matched=4, latency_s=0.5, engine="e")


def write_batch(folder: Path, number: int, **extra: Any) -> None:
    """A completions object of one sample, as a worker writes it."""
    prompt = Prompt(number, f"p{number}", [{"role": "user", "content": "hi"}], **extra)
    answer: dict[str, Any] = {"role": "assistant", "content": "hello"}
    if extra:
        function = {"name": "f", "arguments": {"x": 1}}
        answer["tool_calls"] = [{"id": "call_0", "type": "function", "function": function}]
        answer["reasoning_content"] = "hm"
    row = sample_row(prompt, [*prompt.messages, answer], [generation()], 0, 1)
    path = folder / keys.completions_object("r", keys.batch_name(number))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(codec.encode_rows([row]))


def test_the_example_reads_our_objects_with_datasets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns that are null in one object and full in the next are what breaks a guessed schema."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    tools = [{"type": "function", "function": {"name": "f"}}]
    write_batch(tmp_path / "demo-output", 0)
    write_batch(tmp_path / "demo-output", 1, source="s", domain="d", tools=tools)
    example = re.search(r"```python\n(.*?)```", documents.text_of("docs/data.md"), re.DOTALL)
    assert example is not None
    names: dict[str, Any] = {}
    exec(example[1], names)
    first, second = names["samples"]
    assert first["tools"] == ""
    assert first["generations"][0]["output_ids"] == [3, 4]
    calls = json.loads(second["messages"][1]["tool_calls"])
    assert calls[0]["function"]["arguments"] == {"x": 1}
    assert second["source"] == "s"
