"""What may not change inside a run, and what may."""

from __future__ import annotations

from typing import Any

import pytest

from dflashq.blobs.s3 import Blobs
from dflashq.core.engine_identity import differences, truth_of
from dflashq.core.errors import EngineMismatchError
from dflashq.stages.run_cache import RunCache


def engine(**server: Any) -> dict[str, Any]:
    return {
        "profile": {"model": {"id": "m", "source": "hub/m", "revision": "abc"}},
        "server_info": {"dtype": "bfloat16", "max_running_requests": 64, **server},
        "tokenizer_sha256": "t",
        "template_sha256": "c",
    }


def test_speed_may_differ_and_truth_may_not() -> None:
    mine = truth_of(engine())
    assert differences(mine, truth_of(engine(max_running_requests=256))) == ""
    found = differences(mine, truth_of(engine(dtype="float16")))
    assert found == "dtype: the run has 'bfloat16', this engine 'float16'"


def test_the_first_engine_decides_for_the_run(blobs: Blobs) -> None:
    RunCache(blobs).check_truth("r", engine())
    RunCache(blobs).check_truth("r", engine(max_running_requests=8))
    other = engine() | {"template_sha256": "d"}
    with pytest.raises(EngineMismatchError, match="template_sha256: the run has 'c'"):
        RunCache(blobs).check_truth("r", other)
    RunCache(blobs).check_truth("another", other)
