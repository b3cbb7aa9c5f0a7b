"""Writes .env from .env.example, every empty password filled with a random one; mode 600.

python3 scripts/make_env.py [FOLDER]    never overwrites a .env; needs nothing but Python
"""

from __future__ import annotations

import os
import re
import secrets
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EMPTY = re.compile(r"^([A-Z0-9_]*(?:PASSWORD|SECRET|AUTH|TOKEN|KEY)[A-Z0-9_]*)=$", re.MULTILINE)


def filled(example: str) -> str:
    """The example with a random value behind each name that asks for a secret."""
    return EMPTY.sub(lambda line: f"{line[1]}={_random(line[1])}", example)


def _random(name: str) -> str:
    # Letters and digits only: no shell, URL or settings file gives them another meaning.
    value = secrets.token_hex(20)
    return f"operator:{value}" if name == "FLOWER_BASIC_AUTH" else value


def main(folder: Path) -> None:
    """Write `folder`/.env; SystemExit with a sentence when that file exists already."""
    example = (ROOT / ".env.example").read_text(encoding="utf-8")
    path = folder / ".env"
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise SystemExit(
            f"{path} exists and was left as it is: new passwords would lock you out of the data "
            "that the old ones protect. Move it away to get a new one."
        ) from None
    with os.fdopen(handle, "w", encoding="utf-8") as out:
        out.write(filled(example))
    sys.stdout.write(f"{path} written, readable by you alone; docker compose and dflashq read it\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
