"""`python -m tests.acceptance`: the tests of this folder, with what they print."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

if __name__ == "__main__":
    sys.exit(pytest.main([str(Path(__file__).parent), "-s", "-v", *sys.argv[1:]]))
