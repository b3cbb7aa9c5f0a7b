"""Where the repository, the golden data and the tiny model lie, for every test."""

from __future__ import annotations

import os
from pathlib import Path

# abspath, not resolve: a checkout behind a link keeps the name that it was given.
ROOT = Path(os.path.abspath(__file__)).parents[2]
GOLDEN = ROOT / "tests" / "golden"
TINY_MODEL = GOLDEN / "tiny-thinking"
