"""The README says what the code does: settings, commands, options, and how to read the samples."""

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
from dflashq.core import codec, keys
from dflashq.core.generations.checks import REASONS
from dflashq.core.generations.sample_rows import sample_row
from dflashq.core.model import Generation, Prompt
from dflashq.engine.profiles import known_profiles
from tests.support.paths import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
CODE = re.findall(r"```\w*\n(.*?)```|(`[^`\n]+`)", README, re.DOTALL)
CALLS = [
    call
    for block, span in CODE
    for call in re.findall(r"(?:^|[\s`])dflashq ([a-z][^`\n#]*)", block or span)
]


def settings_table() -> dict[str, tuple[str, str]]:
    rows = re.findall(r"^\| `DFLASHQ_(\w+)` \| (?:`([^`]*)`)? *\| (.+) \|$", README, re.MULTILINE)
    return {name.lower(): (default, meaning) for name, default, meaning in rows}


def shown(value: object) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else f"{value:g}"


def command(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that these words call, and the words behind its name."""
    context = click.Context(root)
    found: click.Command = root
    while words and isinstance(found, click.Group) and not words[0].startswith("-"):
        inner = found.get_command(context, words[0])
        assert inner is not None, f"README: there is no command {words[0]!r} in {words}"
        found, words = inner, words[1:]
    return found, words


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


def test_every_command_and_option_in_the_readme_exists() -> None:
    assert len(CALLS) > 15
    for call in CALLS:
        found, rest = command(call.split())
        known = {option for param in found.params for option in param.opts + param.secondary_opts}
        for word in rest:
            assert not word.startswith("--") or word in known | {"--help"}, call


def test_every_command_is_in_the_readme() -> None:
    assert {call.split()[0] for call in CALLS} == set(COMMANDS)


def test_every_profile_and_reason_is_in_the_readme() -> None:
    for name in (*known_profiles(), *REASONS):
        assert f"`{name}`" in README, name


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


def test_the_readme_reads_our_objects_with_datasets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns that are null in one object and full in the next are what breaks a guessed schema."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    tools = [{"type": "function", "function": {"name": "f"}}]
    write_batch(tmp_path / "demo-output", 0)
    write_batch(tmp_path / "demo-output", 1, source="s", domain="d", tools=tools)
    example = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert example is not None
    names: dict[str, Any] = {}
    exec(example[1], names)
    first, second = names["samples"]
    assert first["tools"] == ""
    assert first["generations"][0]["output_ids"] == [3, 4]
    calls = json.loads(second["messages"][1]["tool_calls"])
    assert calls[0]["function"]["arguments"] == {"x": 1}
    assert second["source"] == "s"
