"""Building into the cache: once, whole, one at a time; and what the shim does."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
import requests
from click.testing import CliRunner

from dflashq.config import Settings
from dflashq.core.errors import EmbeddedError
from dflashq.embedded import cpu_engine, prepare
from dflashq.embedded.cached_build import run_step, sole_builder
from dflashq.embedded.cpu_engine import (
    MODEL_RECORD,
    engine_environment,
    engine_folder,
    ensure_engine,
    ensure_smollm2,
)
from tests.support.wait import WAIT_S

SHIM = str(cpu_engine.SHIM)


def small_requirements(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str) -> None:
    """Stand-in wheels: what is tested is the building, not PyTorch."""
    path = folder / "requirements.txt"
    path.write_text(text)
    monkeypatch.setattr(cpu_engine, "_REQUIREMENTS", path)


def wheel(folder: Path, name: str, module: str, body: str = "") -> Path:
    """A wheel made by hand: pip installs it without any index."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(module, body)
        meta = f"{name}-1.0.dist-info"
        archive.writestr(f"{meta}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{meta}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{meta}/RECORD", "")
    return path


@pytest.fixture
def small_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Requirements that build in seconds: a module that looks like SGLang's."""
    first = wheel(tmp_path, "first", "first.py")
    second = wheel(tmp_path, "second", "sglang/srt/server_args.py")
    text = f"# comment\n{first}\n# ---- without ----\n{second}\n"
    small_requirements(monkeypatch, tmp_path, text)
    return tmp_path / "cache"


def test_the_requirements_name_sglang_only_without_its_own() -> None:
    first, second = cpu_engine._requirements()
    assert "sglang==0.5.23" in second
    assert not any(line.startswith("sglang") for line in first)
    assert "torch==2.13.0" in first
    assert not any(line.startswith("#") for line in (*first, *second))


def test_prepare_builds_anew_what_was_left_half_built_and_then_only_once(
    small_engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = engine_folder(small_engine) / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("not a python")
    monkeypatch.setenv("DFLASHQ_CACHE_DIR", str(small_engine))
    shown = CliRunner().invoke(prepare.main, ["engine"])
    assert shown.exit_code == 0
    assert shown.stdout == f"engine: {python}\n"
    assert "SGLang: done in" in shown.stderr
    subprocess.run([python, "-c", "import first, sglang.srt.server_args"], check=True)

    lines: list[str] = []
    assert ensure_engine(small_engine, lines.append) == python
    assert lines == []


def test_a_failed_build_tells_the_end_of_pips_log_and_leaves_no_stamp(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    missing = tmp_path / "absent-1.0-py3-none-any.whl"
    small_requirements(monkeypatch, tmp_path, f"{missing}\n# ---- without ----\n")
    with pytest.raises(EmbeddedError, match=r"(?s)nothing half-built.*absent-1\.0"):
        ensure_engine(tmp_path / "cache", lambda _: None)
    assert not cpu_engine._complete(engine_folder(tmp_path / "cache"))


def test_another_version_of_the_requirements_has_another_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    small_requirements(monkeypatch, tmp_path, "a==1\n# ----\nb==1\n")
    one = engine_folder(tmp_path)
    small_requirements(monkeypatch, tmp_path, "a==1\n# ----\nb==2\n")
    assert engine_folder(tmp_path) != one


def _build_in_turn(target: Path, marks: Path) -> None:
    with sole_builder(target, lambda _: None):
        with marks.open("a") as sink:
            sink.write("in\n")
        time.sleep(0.2)
        with marks.open("a") as sink:
            sink.write("out\n")


def test_two_builders_take_turns(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    arguments = (tmp_path / "target", tmp_path / "marks")
    builders = [context.Process(target=_build_in_turn, args=arguments) for _ in range(2)]
    for builder in builders:
        builder.start()
    for builder in builders:
        builder.join(30)
    assert (tmp_path / "marks").read_text().split() == ["in", "out"] * 2


def test_a_waiting_builder_says_so(tmp_path: Path) -> None:
    lines: list[str] = []
    target = tmp_path / "target"
    program = "import sys, fcntl; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); "
    program += "print('held', flush=True); sys.stdin.read(1)"
    argv = [sys.executable, "-c", program, f"{target}.lock"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == b"held\n"

        def free_the_lock(line: str) -> None:
            lines.append(line)
            holder.kill()

        with sole_builder(target, free_the_lock):
            assert lines == ["target: another process is building it; waiting"]


def test_a_failed_step_names_itself_and_its_log(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", "import sys; sys.exit('no space left')"]
    with pytest.raises(EmbeddedError, match=r"(?s)step one failed \(exit code 1\).*no space left"):
        run_step("step one", argv, tmp_path / "log", lambda _: None)


def python_with_shim(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": SHIM},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


def test_the_shim_lets_kernels_be_imported_but_not_called() -> None:
    imported = python_with_shim("from sgl_kernel import any_kernel, __version__; print('fine')")
    assert imported.stdout == "fine\n"
    called = python_with_shim("from sgl_kernel import rotary; rotary(1, x=2)")
    assert "RuntimeError: rotary is a CUDA kernel" in called.stderr
    submodule = python_with_shim("import sgl_kernel.flash_attn")
    assert "ModuleNotFoundError" in submodule.stderr


def test_prepare_refuses_an_unknown_part() -> None:
    assert CliRunner().invoke(prepare.main, ["nonsense"]).exit_code == 2


def test_the_committed_tiny_model_is_small_and_has_the_template_of_its_script(
    tiny_model: Path, repository: Path
) -> None:
    template = (repository / "scripts" / "tiny_template.jinja").read_text()
    assert (tiny_model / "chat_template.jinja").read_text().strip() == template.strip()
    assert (tiny_model / "model.safetensors").stat().st_size < 600_000
    assert sum(path.stat().st_size for path in tiny_model.iterdir()) < 1_200_000


@pytest.mark.sglang
def test_smollm2_is_a_whole_checkpoint(engine_python: Path) -> None:
    settings = Settings(_env_file=None)  # type: ignore[call-arg]
    folder = ensure_smollm2(settings.cache_dir, print)
    record = json.loads((folder / MODEL_RECORD).read_text())
    assert record["sha256"] == {
        name: digest for name, digest in cpu_engine._hashes(folder).items() if name != MODEL_RECORD
    }
    program = (
        "import sys; from transformers import AutoTokenizer, AutoConfig\n"
        "t = AutoTokenizer.from_pretrained(sys.argv[1])\n"
        "c = AutoConfig.from_pretrained(sys.argv[1])\n"
        "m = [{'role': 'user', 'content': 'hi'}]\n"
        "text = t.apply_chat_template(m, tokenize=False, add_generation_prompt=True)\n"
        "print(c.model_type, len(t) <= c.vocab_size, text.endswith('assistant\\n'))\n"
    )
    argv = [str(engine_python), "-c", program, str(folder)]
    done = subprocess.run(
        argv, env=engine_environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["llama", "True", "True"]


def ask(url: str, content: str, **more: object) -> tuple[str, str, str]:
    """(thought, answer, finish reason) of one greedy chat turn."""
    messages = [{"role": "user", "content": content}]
    body = {"model": "tiny-thinking", "messages": messages, "max_tokens": 400, "temperature": 0}
    answer = requests.post(f"{url}/v1/chat/completions", json=body | more, timeout=WAIT_S)
    assert answer.status_code == 200, answer.text
    choice = answer.json()["choices"][0]
    thought, closed, content = choice["message"]["content"].partition("</think>")
    assert closed, thought
    return thought, content, choice["finish_reason"]


@pytest.mark.sglang
def test_the_tiny_model_thinks_answers_and_ends(sglang_server: str) -> None:
    for question in ("What is a lantern?", "Add 2 and 3.", "Où est la gare? \u2603", "x" * 500):
        thought, answer, finish = ask(sglang_server, question)
        assert thought.strip().endswith(".")
        assert answer.strip().endswith(".")
        assert finish == "stop"


@pytest.mark.sglang
def test_the_tiny_model_calls_a_tool(sglang_server: str) -> None:
    tool = {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    }
    tools = [{"type": "function", "function": tool}]
    _, answer, finish = ask(sglang_server, "How is the weather in Rome?", tools=tools)
    assert answer.strip().startswith("<tool_call>\n<function=get_weather>\n<parameter=city>\n")
    assert answer.strip().endswith("</function>\n</tool_call>")
    assert finish == "stop"
