"""A server's report goes to S3: its keys do not."""

from __future__ import annotations

import json

from dflashq.core.redact import HIDDEN, without_secrets


def test_keys_are_hidden_at_any_depth_and_in_commands() -> None:
    report = {
        "api_key": "sk-1",
        "admin_api_key": None,
        "max_total_tokens": 16384,
        "tokenizer_path": "model",
        "internal_states": [{"api_key": "sk-1", "eos_token_id": 2}],
        "launch_command": "python -m sglang --api-key sk-1 --admin-api-key=sk-2 --port 3",
        "ssl_keyfile_password": "pw",
    }
    hidden = without_secrets(report)
    text = json.dumps(hidden)
    assert "sk-" not in text
    assert "pw" not in text
    assert hidden["max_total_tokens"] == 16384
    assert hidden["tokenizer_path"] == "model"
    assert hidden["internal_states"][0]["eos_token_id"] == 2
    assert hidden["launch_command"].endswith("--port 3")
    assert hidden["api_key"] == HIDDEN
    assert hidden["admin_api_key"] is None


def test_a_list_of_words_is_searched_too() -> None:
    assert without_secrets(["--api-key x", "y"]) == [f"--api-key {HIDDEN}", "y"]
