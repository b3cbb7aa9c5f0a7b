"""Profiles: read strictly, turned into a command line, and held against the server's report."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflashq.config import Settings
from dflashq.core.errors import ConfigError, EngineError, EngineMismatchError
from dflashq.engine.profile_match import (
    check_server,
    effective_running_limit,
    lookup,
    running_limit,
)
from dflashq.engine.profiles import Concurrency, Profile, known_profiles, load_profile

QWEN = (
    "qwen3.6-27b-rtxpro6000",
    "qwen3.6-27b-b200",
    "qwen3.6-27b-fp8-rtxpro6000",
    "qwen3.6-27b-fp8-b200",
)


@pytest.fixture
def own(tmp_path: Path) -> Settings:
    return Settings(_env_file=None, cache_dir=tmp_path / "cache")


def good_report(profile: Profile) -> dict[str, Any]:
    """A `/server_info` that satisfies every expectation of a shipped profile."""
    report: dict[str, Any] = {"version": "0.5.23", "max_running_requests": 64}
    report["internal_states"] = [{"effective_max_running_requests_per_dp": 300}]
    for key, wanted in profile.expectations().items():
        if key != "version" and "." not in key:
            report[key] = wanted
    return report


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("name", known_profiles())
def test_shipped_profiles_are_whole(name: str, own: Settings) -> None:
    profile = load_profile(name, own)
    assert profile.name == name
    assert profile.about
    assert profile.queue.startswith("generate.")
    assert all(flag.why for flag in profile.launch.flags)
    assert len({flag.flag for flag in profile.launch.flags}) == len(profile.launch.flags)
    placed = (profile.launch.python, profile.model.path, *profile.launch.env.values())
    assert not any("{" in text for text in placed)
    check_server(profile, good_report(profile))


def test_the_profiles_ship() -> None:
    assert set(known_profiles()) == {"smollm2-cpu", "tiny-cpu", "external", *QWEN}


@pytest.mark.parametrize("name", [*QWEN, "external"])
def test_what_every_campaign_expects(name: str, own: Settings) -> None:
    expect = load_profile(name, own).expectations()
    assert expect["speculative_algorithm"] == "EAGLE"
    assert [expect[f"speculative_{n}"] for n in ("num_steps", "eagle_topk")] == [3, 1]
    assert expect["speculative_num_draft_tokens"] == 4
    assert expect["context_length"] == 40960
    assert expect["disable_radix_cache"] is True
    assert expect["allow_auto_truncate"] is False
    assert {"version", "internal_states.0.effective_max_running_requests_per_dp"} <= set(expect)


def test_bf16_and_fp8_are_two_models(own: Settings) -> None:
    assert len({load_profile(name, own).queue for name in QWEN}) == 2


def test_an_external_server_gets_its_address_from_the_settings(tmp_path: Path) -> None:
    values = {"cache_dir": tmp_path, "engine_url": "http://far:30000/", "engine_api_key": "k3y"}
    settings = Settings(_env_file=None, **values)
    profile = load_profile("external", settings)
    assert profile.launch.url == "http://far:30000"
    assert "k3y" not in repr(settings) + repr(profile) + profile.model_dump_json()
    assert not load_profile("tiny-cpu", settings).launch.url


def test_a_server_that_tells_no_running_limit_needs_one(own: Settings) -> None:
    profile = load_profile("external", own)
    assert running_limit(profile, {"max_running_requests": 48}) == 48
    assert running_limit(profile, {}) == 64
    silent = profile.model_copy(update={"concurrency": Concurrency()})
    with pytest.raises(EngineError, match=r"set limit in its \[concurrency\]"):
        running_limit(silent, {})


@pytest.mark.parametrize("name", QWEN)
def test_speculation_cannot_be_forgotten(name: str, own: Settings) -> None:
    profile = load_profile(name, own)
    argv = profile.argv(30000, 21000, "/models/q", "/env/bin/python")
    for flag, value in {
        "--speculative-algorithm": "EAGLE",
        "--speculative-num-steps": "3",
        "--speculative-eagle-topk": "1",
        "--speculative-num-draft-tokens": "4",
        "--port": "30000",
        "--nccl-port": "21000",
        "--model-path": "/models/q",
        "--context-length": "40960",
    }.items():
        assert argv[argv.index(flag) + 1] == value
    assert argv[:3] == ["/env/bin/python", "-m", "sglang.launch_server"]
    assert "--disable-radix-cache" in argv
    assert not any("parser" in word or "auto-truncate" in word for word in argv)
    report = good_report(profile) | {"speculative_algorithm": None, "speculative_num_steps": None}
    with pytest.raises(EngineMismatchError) as caught:
        check_server(profile, report)
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    assert "wanted 'EAGLE', found None; add --speculative-algorithm EAGLE" in lines[1]
    assert "wanted 3, found None; add --speculative-num-steps 3" in lines[2]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"model_path": "/another"}, "model_path: wanted"),
        ({"context_length": 8192}, "add --context-length 40960"),
        ({"version": "0.5.9"}, "version: wanted at least 0.5.23 and at most 0.5, found '0.5.9'"),
        ({"version": "0.6.0"}, "install a version in this range"),
        ({"version": None}, "found None"),
        ({"disable_radix_cache": 1}, "wanted True, found 1; add --disable-radix-cache"),
        ({"allow_auto_truncate": True}, "remove --allow-auto-truncate"),
        ({"internal_states": []}, "wanted at least 16, found nothing; add --max-running"),
        (
            {"internal_states": [{"effective_max_running_requests_per_dp": 4}]},
            "effective_max_running_requests_per_dp: wanted at least 16, found 4",
        ),
        ({"speculative_num_steps": True}, "found True"),
    ],
)
def test_each_difference_is_named(change: dict[str, Any], complaint: str, own: Settings) -> None:
    profile = load_profile(QWEN[0], own)
    with pytest.raises(EngineMismatchError) as caught:
        check_server(profile, good_report(profile) | change)
    assert complaint in str(caught.value)
    assert len(str(caught.value).splitlines()) == 2


def test_a_pinned_revision_is_passed_and_checked(tmp_path: Path, own: Settings) -> None:
    path = write(tmp_path, '[model]\nid = "m"\nrevision = "abc"\npath = "/m"\n')
    profile = load_profile(path, own)
    argv = profile.argv(1, 2, "/m", "python")
    assert argv[argv.index("--revision") + 1] == "abc"
    assert profile.expectations()["revision"] == "abc"


def test_settings_take_precedence(tmp_path: Path) -> None:
    values = {"cache_dir": tmp_path, "model_path": "/mine", "engine_python": "/mine/python"}
    profile = load_profile("tiny-cpu", Settings(_env_file=None, **values))
    assert profile.model.path == "/mine"
    assert profile.launch.python == "/mine/python"


def test_a_star_is_the_newest_match(tmp_path: Path) -> None:
    for age, name in ((200, "smollm2-135m-instruct-aa"), (100, "smollm2-135m-instruct-bb")):
        folder = tmp_path / "models" / name
        folder.mkdir(parents=True)
        os.utime(folder, (1e9 - age, 1e9 - age))
    (tmp_path / "models" / "smollm2-135m-instruct-bb.log").touch()
    profile = load_profile("smollm2-cpu", Settings(_env_file=None, cache_dir=tmp_path))
    assert profile.model.path == str(tmp_path / "models" / "smollm2-135m-instruct-bb")


def test_unknown_and_unset_names_list_the_known(own: Settings) -> None:
    for name in ("qwen", "", "/nowhere/x.toml"):
        with pytest.raises(ConfigError, match="smollm2-cpu"):
            load_profile(name, own)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[model", "is not TOML"),
        ("[launch]\n", "model: Field required"),
        ('[model]\nid = "m"\nthinkng = true\n', "model.thinkng: Extra inputs"),
        ('[model]\nid = "m"\n[sampling]\ntop_p = 2\n', "sampling.top_p"),
        ('[model]\nid = "m"\n[launch]\nkind = "command"\n', "needs argv"),
        ('[model]\nid = "m"\n[launch]\nurl = "http://u:p@h"\n', "DFLASHQ_ENGINE_API_KEY"),
        ('[model]\nid = "m"\n[launch]\ndialect = "tgi"\n', "launch.dialect"),
        ('[model]\nid = "m"\n[launch]\nflags = [{flag = "--x", value = 1}]\n', "flags.0.why"),
        ('[model]\nid = "m"\n[launch]\nflags = [{flag = "x", why = "y"}]\n', "flags.0.flag"),
    ],
)
def test_a_wrong_file_names_file_and_field(
    tmp_path: Path, text: str, complaint: str, own: Settings
) -> None:
    with pytest.raises(ConfigError, match=r"mine\.toml") as caught:
        load_profile(write(tmp_path, text), own)
    assert complaint in str(caught.value)


def test_command_placeholders(tmp_path: Path, own: Settings) -> None:
    text = """
        [model]
        id = "m"
        [launch]
        kind = "command"
        argv = ["{python}", "-p", "{port}", "{nccl_port}", "--model={model}", "{gpu}", "{other}"]
    """
    argv = load_profile(write(tmp_path, text), own).argv(1, 2, "/m", "py", "3")
    assert argv == ["py", "-p", "1", "2", "--model=/m", "3", "{other}"]


def test_an_external_engine_has_no_command_line(tmp_path: Path, own: Settings) -> None:
    text = '[model]\nid = "m"\n[launch]\nkind = "external"\nurl = "http://h:1"\n'
    with pytest.raises(ConfigError, match="not ours to start"):
        load_profile(write(tmp_path, text), own).argv(1, 2, "/m", "py")


def test_running_limit_is_what_memory_allows() -> None:
    report = {"max_running_requests": 64}
    assert effective_running_limit(report) == 64
    report["internal_states"] = [{"effective_max_running_requests_per_dp": 23}]
    assert effective_running_limit(report) == 23
    with pytest.raises(EngineError, match="names no running-request limit"):
        effective_running_limit({"max_running_requests": None})


@given(st.integers(1, 2000), st.none() | st.integers(0, 99), st.none() | st.integers(1, 99))
def test_in_flight(running: int, margin: int | None, limit: int | None) -> None:
    wanted = Concurrency(margin=margin, limit=limit).in_flight(running)
    assert wanted >= 1
    if limit is not None:
        assert wanted <= limit
    else:
        assert wanted - running == (max(8, running // 4) if margin is None else margin)


def test_lookup_follows_lists_and_stops_at_gaps() -> None:
    report = {"a": [{"b": None}]}
    assert lookup(report, "a.0.b") is None
    for path in ("a.1.b", "a.x", "a.0.b.c", "z"):
        assert lookup(report, path) not in (None, report)
