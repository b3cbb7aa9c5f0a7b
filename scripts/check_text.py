"""Fails for text files that do not end with one newline, or have space at the end of a line.

python3 scripts/check_text.py FILE...    prints what is wrong and where; changes nothing
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path


def defects(text: bytes) -> Iterator[str]:
    """What is wrong with the bytes of one file, each as `LINE: sentence`. An empty file is fine."""
    lines = text.split(b"\n")
    if text and lines[-1]:
        yield f"{len(lines)}: the last line has no newline"
    if text.endswith(b"\n\n") or text == b"\n":
        yield f"{len(lines) - 1}: the file ends with an empty line"
    for number, line in enumerate(lines, 1):
        if line.endswith((b" ", b"\t", b"\r")):
            yield f"{number}: space at the end of the line"


def main(names: list[str]) -> int:
    """Print the defects of all files; 1 when there are any."""
    status = 0
    for name in names:
        for defect in defects(Path(name).read_bytes()):
            print(f"{name}:{defect}")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
