"""The version of the stored formats: every object on S3 and every run in Redis carries one.

A reader ignores fields that it does not know, so that a newer version may add some under the same
major number. A newer major number means that an older reader would misunderstand what it reads: it
refuses. What carries no version was written before there were any, and is version 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from dflashq.core.errors import NewerFormatError

VERSION = 1
# The name of the version in the user metadata of an object on S3.
METADATA_KEY = "dflashq-schema"


def refuse_newer(version: object, name: str) -> None:
    """NewerFormatError when `version` (`1`, `"1"`, `"1.2"`; None: the first) is no major of ours.

    `name` says in the error what carries the version.
    """
    text = "1" if version is None else str(version)
    major = text.partition(".")[0]
    if not major.isdecimal() or int(major) > VERSION:
        raise NewerFormatError(newer_format_sentence(name, text))


def newer_format_sentence(name: str, version: str) -> str:
    """What is refused, why, and what to do about it."""
    return (
        f"{name} has the format version {version}, and this dflashq reads up to version "
        f"{VERSION}: a newer dflashq wrote it. Nothing was changed. Install that version here "
        "(`pip install -U dflashq`), or leave the run to the hosts that have it."
    )


def known_fields(kind: type[Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `row` that the dataclass `kind` has; the others are a newer version's."""
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in row.items() if name in names}


def unknown_fields(kind: type[Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """The other fields of `row`: for records that are written back as they were read."""
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in row.items() if name not in names}
