"""Before the first prompt: the engine renders as we do, and what it generates is in order."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dflashq.core.errors import EngineError, EngineMismatchError
from dflashq.engine.chat_renderer import ChatRenderer
from dflashq.engine.profiles import Profile
from dflashq.engine.startup_check import GOLDEN, StartupCheck
from tests.support.engine_emulator import EmulatedEngine, prompt_hash
from tests.support.engine_emulator.answers import unit
from tests.support.engine_emulator.profile import token_options
from tests.support.supervised_engine import Supervised, profile_in, until


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> Iterator[EmulatedEngine]:
    """An engine that has the tiny model's tokenizer and template."""
    with EmulatedEngine(**token_options(tiny_model), tokenizer=tiny_model) as engine:
        yield engine


@pytest.fixture(autouse=True)
def _no_faults(engine: EmulatedEngine) -> Iterator[None]:
    yield
    engine.set_faults()


def startup_check(model_dir: Path, thinking: bool = True) -> StartupCheck:
    model = {"id": "tiny", "path": str(model_dir), "thinking": thinking}
    profile = Profile.model_validate({"name": "tiny", "model": model})
    return StartupCheck(profile, ChatRenderer(model_dir), None)


def test_an_engine_that_renders_as_we_do_passes(
    engine: EmulatedEngine, tiny_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "dflashq.engine.startup_check")
    assert startup_check(tiny_model).check(engine.url, {}) == 2 * len(GOLDEN)
    assert f"{2 * len(GOLDEN)} golden renderings agree" in caplog.text


def changed(model: Path, tmp_path: Path, old: str, new: str) -> Path:
    """The model folder with another chat template."""
    folder = tmp_path / "changed"
    shutil.copytree(model, folder)
    for name in ("chat_template.jinja", "tokenizer_config.json"):
        path = folder / name
        if path.is_file() and old in path.read_text():
            path.write_text(path.read_text().replace(old, new))
            return folder
    raise AssertionError(f"no {old!r} in the template")


@pytest.mark.parametrize("thinking", [True, False])
def test_one_newline_more_is_refused_with_its_place(
    engine: EmulatedEngine, tiny_model: Path, tmp_path: Path, thinking: bool
) -> None:
    folder = changed(tiny_model, tmp_path, "<|im_start|>assistant", "\\n<|im_start|>assistant")
    with pytest.raises(EngineMismatchError) as caught:
        startup_check(folder, thinking).check(engine.url, {})
    text = str(caught.value)
    ours = ChatRenderer(folder).render(GOLDEN["one turn"][0], None, thinking=thinking)
    theirs = ChatRenderer(tiny_model).render(GOLDEN["one turn"][0], None, thinking=thinking)
    place = next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b)
    assert f"'one turn' differs at position {place}" in text
    assert f"id {ours[place]} after" in text
    assert f"id {theirs[place]} after" in text
    assert "12 + 30" in text
    assert "DFLASHQ_MODEL_PATH" in text


def test_an_engine_with_a_newline_behind_is_refused_before_it_is_ready(
    tmp_path: Path, tiny_model: Path
) -> None:
    profile = profile_in(tmp_path, tiny_model, template_extra="\n")
    supervised = Supervised(tmp_path, profile, check=startup_check(tiny_model).check)
    with pytest.raises(EngineMismatchError, match="the end after"), supervised:
        raise AssertionError("it was taken")
    assert supervised.ready == []
    assert isinstance(supervised.failed[0], EngineMismatchError)


def test_a_good_engine_becomes_ready_after_the_check(tmp_path: Path, tiny_model: Path) -> None:
    profile = profile_in(tmp_path, tiny_model)
    with Supervised(tmp_path, profile, check=startup_check(tiny_model).check) as engine:
        assert len(engine.ready) == 1


def test_a_silence_during_a_later_check_is_a_death(tmp_path: Path, tiny_model: Path) -> None:
    """Only a mismatch is final once an engine of this profile has worked."""
    calls: list[str] = []

    def check(base_url: str, _: dict[str, Any]) -> None:
        calls.append(base_url)
        if len(calls) == 2:
            raise EngineError("the engine did not answer")

    with Supervised(tmp_path, profile_in(tmp_path, tiny_model), check=check) as engine:
        engine.supervisor.restart("a test")
        until(lambda: len(engine.ready) == 2, "the third start is ready")
        assert engine.down == ["a test", "the engine did not answer"]
        assert engine.failed == []


def test_a_server_that_tells_nothing_is_not_compared(
    tiny_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with EmulatedEngine(**token_options(tiny_model)) as engine:
        assert startup_check(tiny_model).check(engine.url, {}) == 0
    assert "does not tell how it renders" in caplog.text


def test_a_server_that_renders_to_nothing_is_refused(
    engine: EmulatedEngine, tiny_model: Path
) -> None:
    engine.set_faults(rendering="empty")
    with pytest.raises(EngineMismatchError, match="'one turn' differs at position 0") as caught:
        startup_check(tiny_model).check(engine.url, {})
    assert "the engine's: the end after ''" in str(caught.value)


def test_a_server_that_refuses_every_rendering_is_refused(
    engine: EmulatedEngine, tiny_model: Path
) -> None:
    engine.set_faults(rendering="refused")
    with pytest.raises(EngineMismatchError, match="refuses to render any of 12 golden"):
        startup_check(tiny_model).check(engine.url, {})


@pytest.mark.parametrize(
    ("faults", "sentence"),
    [
        ({"nan": 1.0}, "'NaN happened', which nobody asked for"),
        ({"http_500": 1.0}, "HTTP 500"),
        ({"altered_prompt": 1.0}, "prompt_token_ids differ"),
    ],
)
def test_garbage_is_refused(
    engine: EmulatedEngine, tiny_model: Path, faults: dict[str, float], sentence: str
) -> None:
    engine.set_faults(**faults)
    with pytest.raises(EngineMismatchError, match="generates nothing that is in order") as caught:
        startup_check(tiny_model).check(engine.url, {})
    assert sentence in str(caught.value)


def test_one_odd_answer_is_not_garbage(engine: EmulatedEngine, tiny_model: Path) -> None:
    first = ChatRenderer(tiny_model).render(GOLDEN["one turn"][0], None, thinking=True)
    seed = 0
    share = unit(seed, "content", prompt_hash(first)) + 1e-9
    others = [
        ChatRenderer(tiny_model).render(GOLDEN[name][0], None, thinking=True)
        for name in ("system", "history")
    ]
    assert any(unit(seed, "content", prompt_hash(ids)) > share for ids in others)
    engine.set_faults(nan=share)
    startup_check(tiny_model).check(engine.url, {})
    assert engine.stats()["answered"] >= 2


def test_an_id_outside_the_vocabulary_is_garbage(tiny_model: Path) -> None:
    options = token_options(tiny_model)
    size = options["vocab_size"]
    options |= {"ids": f"{size + 1000}:{size + 2000}"}
    with (
        EmulatedEngine(**options) as engine,
        pytest.raises(EngineMismatchError, match="outside the vocabulary of 1024"),
    ):
        startup_check(tiny_model).check(engine.url, {})


def test_one_token_again_and_again_is_garbage(tiny_model: Path) -> None:
    options = token_options(tiny_model) | {"ids": "50:51", "think_close": None}
    with (
        EmulatedEngine(**options) as engine,
        pytest.raises(EngineMismatchError, match="the token 50 again and again"),
    ):
        startup_check(tiny_model).check(engine.url, {})


def test_no_server_is_an_error_with_its_address(tiny_model: Path) -> None:
    with pytest.raises(EngineError, match=r"http://127\.0\.0\.1:9 did not answer"):
        startup_check(tiny_model).check("http://127.0.0.1:9", {})
