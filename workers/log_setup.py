"""Sets up a worker's log: console or JSON, without the debug lines that may quote credentials."""

from __future__ import annotations

import logging

from redis import RedisError

from dflashq.config import load
from dflashq.core import json_logging

# At DEBUG these log addresses and headers, which may hold credentials.
_NEVER_DEBUG = ("urllib3", "botocore", "boto3", "aiohttp", "kombu", "amqp")
# The event loop logs every exception of a timer of the transport with a traceback.
_LOOP = "kombu.asynchronous.hub"
_json = json_logging.JsonFormatter()


def _not_an_outage(record: logging.LogRecord) -> bool:
    """False for an exception of Redis in a timer, which tries again: the outage is logged once."""
    return not (record.exc_info and isinstance(record.exc_info[1], RedisError))


def configure(level: int, file: str | None) -> None:
    """Log to `file`, or to stderr for None, from `level` on. Safe to repeat."""
    logging.basicConfig(level=level, format=json_logging.CONSOLE, filename=file, force=True)
    if load().log_format == "json":
        for handler in logging.getLogger().handlers:
            handler.setFormatter(_json)
    for name in _NEVER_DEBUG:
        logging.getLogger(name).setLevel(max(level, logging.INFO))
    logging.getLogger(_LOOP).addFilter(
        _not_an_outage
    )  # adding the same filter again changes nothing
    # Celery logs every hint that comes; what becomes of its batch is logged by the stages.
    logging.getLogger("celery.worker.strategy").setLevel(logging.WARNING)


def identify(worker: str, gpu: str) -> None:
    """Put the worker's name into every JSON line from now on."""
    _json.common = {"worker": worker, **({"gpu": gpu} if gpu else {})}
