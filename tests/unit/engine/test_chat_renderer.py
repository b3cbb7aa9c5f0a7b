"""Rendering: the template's text as ids, exact both ways, with the model's own markers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dflashq.core.errors import ConfigError, EngineRefusedError
from dflashq.engine.chat_renderer import ChatRenderer
from tests.support.tiny_tokenizer import save_tiny_tokenizer

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "Say grüß <|im_end|> and 猫."}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}

BROKEN = {"type": "function", "function": {"name": "look", "arguments": "{no json"}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_tokenizer(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def renderer(folder: Path) -> ChatRenderer:
    return ChatRenderer(folder)


def test_ids_are_plain_and_decode_to_the_template(renderer: ChatRenderer) -> None:
    ids = renderer.render([SYSTEM, {"role": "user", "content": "Hi 猫"}], None, thinking=True)
    assert all(type(token) is int for token in ids)
    assert renderer.decode(ids) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi 猫<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n"
    )


def test_thinking_off_closes_the_thought(renderer: ChatRenderer) -> None:
    on = renderer.render([USER], None, thinking=True)
    off = renderer.render([USER], None, thinking=False)
    assert off[: len(on)] == on
    assert renderer.decode(off[len(on) :]) == "\n</think>\n\n"


def test_tools_and_history(renderer: ChatRenderer) -> None:
    call = {"type": "function", "function": {"name": "look", "arguments": '{"at": "moon"}'}}
    answer = {
        "role": "assistant",
        "reasoning_content": "Hm.",
        "content": None,
        "tool_calls": [call],
    }
    again = {**answer, "tool_calls": [{**call, "function": {"name": "look"}}]}
    again["tool_calls"][0]["function"]["arguments"] = {"at": "moon"}
    ids = renderer.render([USER, answer, USER], [TOOL], thinking=True)
    text = renderer.decode(ids)
    assert text.startswith('<|im_start|>tools\n{"type": "function"')
    assert "<think>\nHm.\n</think>\n\n<tool_call>look at=moon</tool_call><|im_end|>" in text
    assert renderer.render([USER, again, USER], [TOOL], thinking=True) == ids
    assert answer["content"] is None  # the conversation itself is left alone
    assert renderer.render([USER], [], thinking=True) == renderer.render(
        [USER], None, thinking=True
    )


@pytest.mark.parametrize(
    ("messages", "sentence"),
    [
        ([USER, SYSTEM], "System message must be at the beginning"),
        ([USER, {"role": "assistant", "tool_calls": [BROKEN]}], "chat template"),
        ([{"role": "user"}, {"role": None, "content": "x"}], "chat template"),
    ],
)
def test_what_the_template_refuses(
    renderer: ChatRenderer, messages: list[dict[str, object]], sentence: str
) -> None:
    with pytest.raises(EngineRefusedError, match=sentence):
        renderer.render(messages, None, thinking=True)


def test_markers(renderer: ChatRenderer) -> None:
    markers = renderer.markers()
    named = {renderer.decode([token]) for token in markers.end_ids}
    assert named == {"<|im_end|>", "<|endoftext|>"}
    assert renderer.decode([markers.think_open, markers.think_close]) == "<think></think>"
    # The vision token is special too, but this template never writes it.
    assert [renderer.decode([token]) for token in markers.template_ids] == ["<|im_start|>"]
    assert markers.vocab_size == 320


def test_a_model_without_thinking(folder: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    shutil.copytree(folder, plain)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        text = (plain / name).read_text()
        (plain / name).write_text(text.replace("think>", "thunk>"))
    (plain / "generation_config.json").unlink()
    (plain / "config.json").unlink()
    markers = ChatRenderer(plain).markers()
    assert (markers.think_open, markers.think_close) == (None, None)
    assert len(markers.end_ids) == 1
    assert markers.vocab_size == 264


def test_hashes_tell_tokenizer_and_template_apart(folder: Path, tmp_path: Path) -> None:
    first, other = ChatRenderer(folder), tmp_path / "other"
    shutil.copytree(folder, other)
    template = other / "chat_template.jinja"
    template.write_text(template.read_text() + " ")
    second = ChatRenderer(other)
    assert first.tokenizer_sha256 == second.tokenizer_sha256
    assert first.template_sha256 != second.template_sha256
    raw = json.loads((other / "tokenizer.json").read_text())
    raw["added_tokens"][0]["lstrip"] = True
    (other / "tokenizer.json").write_text(json.dumps(raw))
    assert ChatRenderer(other).tokenizer_sha256 != first.tokenizer_sha256


def test_folders_that_cannot_serve(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no model folder"):
        ChatRenderer(tmp_path / "absent").markers()
    with pytest.raises(ConfigError, match="no tokenizer"):
        ChatRenderer(tmp_path).tokenizer_sha256  # noqa: B018 - a property that reads files
    with pytest.raises(ConfigError, match="no usable tokenizer"):
        ChatRenderer(tmp_path).markers()
    bare = tmp_path / "bare"
    shutil.copytree(folder, bare)
    (bare / "chat_template.jinja").unlink()
    with pytest.raises(ConfigError, match="no chat template"):
        ChatRenderer(bare).render([USER], None, thinking=True)


def test_many_threads_at_once(folder: Path) -> None:
    renderer = ChatRenderer(folder)
    wanted = ChatRenderer(folder).render([SYSTEM, USER], [TOOL], thinking=True)

    def once(_: int) -> bool:
        ids = renderer.render([SYSTEM, USER], [TOOL], thinking=True)
        return ids == wanted and renderer.decode(ids) == renderer.decode(wanted)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(once, range(200)))


def test_importing_the_engine_loads_no_transformers() -> None:
    code = (
        "import sys, dflashq.engine.chat_renderer, dflashq.engine.dialects.sglang;"
        "import dflashq.engine.supervisor;"
        "sys.exit('transformers' in sys.modules or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class PanicException(BaseException):
    """As pyo3 names what a panic in Rust becomes."""


@pytest.mark.parametrize(
    "exc", [ZeroDivisionError("by 0"), RecursionError(), PanicException("index out of bounds")]
)
def test_whatever_template_and_tokenizer_raise_is_about_that_prompt(
    folder: Path, monkeypatch: pytest.MonkeyPatch, exc: BaseException
) -> None:
    def broken(*rest: object, **more: object) -> None:
        raise exc

    renderer = ChatRenderer(folder)
    monkeypatch.setattr(renderer._tokenizer, "apply_chat_template", broken)
    with pytest.raises(EngineRefusedError, match="the chat template does not take"):
        renderer.render([USER], None, thinking=True)


@pytest.mark.parametrize("exc", [MemoryError(), OSError(24, "Too many open files")])
def test_trouble_of_the_machine_is_about_no_prompt(
    folder: Path, monkeypatch: pytest.MonkeyPatch, exc: Exception
) -> None:
    def broken(*rest: object, **more: object) -> None:
        raise exc

    renderer = ChatRenderer(folder)
    monkeypatch.setattr(renderer._tokenizer, "apply_chat_template", broken)
    with pytest.raises(type(exc)):
        renderer.render([USER], None, thinking=True)
