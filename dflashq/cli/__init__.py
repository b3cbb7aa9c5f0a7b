"""The command line: one file a command, each calls one operation and prints."""

from __future__ import annotations


def main() -> None:
    """Run `dflashq` and exit: 0 ok, 1 failed, 2 usage, 3 bug, 130 interrupted."""
    from dflashq.cli.root import root  # noqa: PLC0415 - the package must not cost its importers

    root.main(prog_name="dflashq")
