"""Log records as JSON, with an event name and fields that come from the sentence.

A message such as `"batch begins: run=%s batch=%s"` is the event `batch_begins` with the fields
`run` and `batch`, in the types that were logged. So one sentence serves people and machines.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from dflashq.core.errors import LedgerUnreachableError

CONSOLE = "%(asctime)s %(levelname)s %(name)s: %(message)s"

_PLACEHOLDER = re.compile(r"(?:\b([a-z_]+)=)?%(?:%|[-#0 +]*\d*(?:\.\d+)?[a-zA-Z])")
_EVENT_END = re.compile(r"[:(]|\b[a-z_]+=")
_NO_WORD = re.compile(r"[^a-z0-9]+")
_OURS = ("dflashq", "workers", "__main__")
_PLAIN = (str, int, float, bool, list, dict, type(None))


class JsonFormatter(logging.Formatter):
    """One JSON object a record; `common` fields (worker, gpu) are in each."""

    def __init__(self, common: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self.common: dict[str, str] = dict(common or {})

    def format(self, record: logging.LogRecord) -> str:
        row: dict[str, Any] = {
            **fields(record),
            "at": moment(record),
            "level": record.levelname.lower(),
            "event": event(record),
            **self.common,
            "message": record.getMessage(),
            "logger": record.name,
            "thread": record.threadName,
        }
        if record.exc_info:
            row["traceback"] = self.formatException(record.exc_info)
        return json.dumps(row, ensure_ascii=False, default=str)


def level_of(exc: Exception) -> int:
    """The level at which to log what waits because of `exc`.

    An outage of Redis is logged once, where it begins, so those who wait log at DEBUG.
    """
    return logging.DEBUG if isinstance(exc, LedgerUnreachableError) else logging.WARNING


def moment(record: logging.LogRecord) -> str:
    """The time of a record, ISO 8601 in UTC."""
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def event(record: logging.LogRecord) -> str:
    """The event name of a record: its sentence up to a colon or a field, without the values.

    A record of another library has the name of that library.
    """
    top = record.name.partition(".")[0]
    if top not in _OURS:
        return top
    template = str(record.msg)
    end = _EVENT_END.search(template)
    words = _PLACEHOLDER.sub(" ", template[: end.start()] if end else template)
    name = _NO_WORD.sub("_", words.lower()).strip("_")
    return name or f"{record.module}.{record.funcName}"


def fields(record: logging.LogRecord) -> dict[str, Any]:
    """The values that the template names (`run=%s`), in their own types where JSON has them."""
    if not isinstance(record.args, tuple):
        return {}
    values = iter(record.args)
    named: dict[str, Any] = {}
    for placeholder in _PLACEHOLDER.finditer(str(record.msg)):
        if placeholder[0].endswith("%%"):
            continue
        value = next(values, None)
        if placeholder[1]:
            named[placeholder[1]] = value if isinstance(value, _PLAIN) else str(value)
    return named
