"""A hint is never acknowledged: the channel that brought it may be closed by then."""

from __future__ import annotations

from celery.utils.imports import symbol_by_name

from workers.app import app
from workers.hint_request import HintRequest


def request() -> HintRequest:
    hint = HintRequest.__new__(HintRequest)

    def closed(*_: object, **__: object) -> None:
        raise AttributeError("'NoneType' object has no attribute 'client'")

    hint._on_ack = hint._on_reject = closed
    hint.acknowledged = False
    return hint


def test_every_task_is_handled_as_a_hint() -> None:
    app.loader.import_default_modules()
    for name in ("dflashq.generate", "dflashq.tokenize"):
        assert symbol_by_name(app.tasks[name].Request) is HintRequest


def test_a_closed_channel_is_not_asked_to_acknowledge() -> None:
    """It ended the worker when Redis came back after a password had changed."""
    acknowledged, rejected = request(), request()
    acknowledged.acknowledge()
    assert acknowledged.acknowledged
    rejected.reject(requeue=True)
    assert rejected.acknowledged
