#!/usr/bin/env python3
"""Enqueue prompt files: the same as `dflashq enqueue`."""

from __future__ import annotations

import sys

from dflashq.cli.root import root

if __name__ == "__main__":
    root.main(["enqueue", *sys.argv[1:]], prog_name="dflashq")
