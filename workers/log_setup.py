"""A worker's log: console or JSON, as the settings say; libraries that quote secrets held back."""

from __future__ import annotations

import logging

from redis import RedisError

from dflashq.config import load
from dflashq.core import json_logging

# At DEBUG they tell addresses and headers, which may hold credentials.
_TALKATIVE = ("urllib3", "botocore", "boto3", "aiohttp", "kombu", "amqp")
# The event loop logs what a timer of the transport meets, with a traceback each.
_LOOP = "kombu.asynchronous.hub"
_json = json_logging.JsonFormatter()


def _no_outage(record: logging.LogRecord) -> bool:
    """False for what an outage of Redis does to a timer, which tries again: it is told once."""
    return not (record.exc_info and isinstance(record.exc_info[1], RedisError))


def configure(level: int, file: str | None) -> None:
    """Log to stderr, or to a file. Safe to repeat."""
    logging.basicConfig(level=level, format=json_logging.CONSOLE, filename=file, force=True)
    if load().log_format == "json":
        for handler in logging.getLogger().handlers:
            handler.setFormatter(_json)
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(max(level, logging.INFO))
    logging.getLogger(_LOOP).addFilter(_no_outage)  # the same one again changes nothing
    # Celery tells of every hint; the batches tell it better.
    logging.getLogger("celery.worker.strategy").setLevel(logging.WARNING)


def identify(worker: str, gpu: str) -> None:
    """Put the worker's name into every JSON line from now on."""
    _json.common = {"worker": worker, **({"gpu": gpu} if gpu else {})}
