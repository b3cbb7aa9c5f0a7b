"""The tasks: one line each, the work is in `dflashq.stages`."""

from __future__ import annotations

from functools import cache

from dflashq.blobs.s3 import Blobs
from dflashq.config import load
from dflashq.core import keys
from dflashq.stages.rows import tokenize_hinted
from workers import runtime
from workers.app import app


@app.task(name=keys.GENERATE_TASK)  # type: ignore[untyped-decorator]
def generate(run: str, batch: str) -> str:
    """Work on a hinted batch until it is committed or handed back."""
    return runtime.required().generator.handle(run, batch)


@app.task(name=keys.TOKENIZE_TASK)  # type: ignore[untyped-decorator]
def tokenize(run: str, batch: str) -> str:
    """Write the training rows of a committed batch, unless they are there."""
    return tokenize_hinted(_blobs(), run, batch)


@cache
def _blobs() -> Blobs:
    """The store of this process: its client is safe from many threads."""
    return Blobs(load())
