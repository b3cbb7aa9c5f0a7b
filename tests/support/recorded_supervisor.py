"""A supervisor of the fake engine, and what it called back."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from dflashq.config import Settings
from dflashq.engine.profiles import Profile
from dflashq.engine.supervisor import EngineSupervisor
from tests.support import fake_engine
from tests.support.wait import WAIT_S

FAKE = Path(fake_engine.__file__)
INFO = {"version": "0.5.23", "speculative_algorithm": "EAGLE"}


def make_profile(*extra: str, expect: dict[str, Any] | None = None, **launch: Any) -> Profile:
    """A profile that launches `fake_engine` with `extra` arguments."""
    argv = [sys.executable, str(FAKE), "--port", "{port}", "--info", json.dumps(INFO), *extra]
    return Profile.model_validate(
        {
            "name": "fake",
            "model": {"id": "fake"},
            "launch": {"kind": "command", "argv": argv, "start_timeout_s": WAIT_S, **launch},
            "expect": expect or {},
        }
    )


class RecordedSupervisor:
    """A supervisor of a fake engine, not started, that records its callbacks."""

    def __init__(self, profile: Profile, settings: Settings) -> None:
        self.ready: list[tuple[str, dict[str, Any]]] = []
        self.down: list[str] = []
        self.failed: list[Exception] = []
        self.supervisor = EngineSupervisor(
            profile,
            settings,
            on_ready=lambda url, info: self.ready.append((url, info)),
            on_down=self.down.append,
            on_failed=self.failed.append,
        )

    def pid(self) -> int:
        """The process id that the last engine reported."""
        return int(self.ready[-1][1]["pid"])
