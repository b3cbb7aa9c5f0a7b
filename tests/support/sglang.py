"""A real SGLang on the CPU that serves the tiny thinking model, once a session."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from dflashq.config import Settings
from dflashq.embedded.cpu_engine import engine_environment, ensure_engine
from dflashq.embedded.server_process import ServerProcess
from dflashq.engine.chat_renderer import ChatRenderer
from dflashq.engine.dialects.sglang import SGLang
from dflashq.engine.profiles import Profile
from dflashq.system.ports import free_port
from tests.support.paths import TINY_MODEL
from tests.support.wait import WAIT_S

READY_S = 240.0  # mostly imports: half a minute alone, up to three minutes on a busy machine
TIMEOUT_S = 1_200  # the first test may have to build the environment
FLAGS = {
    "--device": "cpu",
    "--dtype": "float32",
    "--attention-backend": "torch_native",
    "--sampling-backend": "pytorch",
    "--cuda-graph-backend-decode": "disabled",
    "--cuda-graph-backend-prefill": "disabled",
    "--mem-fraction-static": "0.3",
    "--max-total-tokens": "16384",
    "--max-running-requests": "32",
    "--served-model-name": "tiny-thinking",
}
SWITCHES = (
    "--disable-overlap-schedule",
    "--enable-metrics",
    "--incremental-streaming-output",
    "--sleep-on-idle",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `sglang` may have to wait for the environment and for the server's start."""
    for item in items:
        if item.get_closest_marker("sglang") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def tiny_model() -> Path:
    """A Qwen3 of 200,000 parameters that thinks, answers and calls a tool."""
    return TINY_MODEL


@pytest.fixture(scope="session")
def engine_python() -> Path:
    """The Python of SGLang on the CPU; built on first use (minutes)."""
    settings = Settings(_env_file=None)  # type: ignore[call-arg]
    return ensure_engine(settings.cache_dir, print)


@pytest.fixture(scope="session")
def sglang_server(
    engine_python: Path, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The base URL of a real SGLang with the tiny model."""
    port = free_port()
    child = ServerProcess("SGLang", tmp_path_factory.mktemp("sglang") / "sglang.log")
    listening = ["--host", "127.0.0.1", "--port", str(port), "--nccl-port", str(free_port())]
    module = [str(engine_python), "-m", "sglang.launch_server", "--model-path", str(tiny_model)]
    flags = [f"{name}={value}" for name, value in FLAGS.items()]
    child.start([*module, *listening, *flags, *SWITCHES], os.environ | engine_environment())
    url = f"http://127.0.0.1:{port}"
    child.wait_ready(lambda: _healthy(url), READY_S)
    yield url
    child.stop()


def report_of(url: str) -> dict[str, Any]:
    """What the server reports about itself."""
    profile = Profile.model_validate({"name": "tiny", "model": {"id": "tiny"}})
    return SGLang().report(profile, url, None)


def renderer_of(url: str) -> ChatRenderer:
    """A renderer of the model that the server serves."""
    return ChatRenderer(report_of(url)["model_path"])


def _healthy(url: str) -> bool:
    try:
        return requests.get(f"{url}/health", timeout=WAIT_S).status_code == 200
    except requests.ConnectionError:
        return False
