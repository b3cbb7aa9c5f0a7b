"""JSON logs: the event's name and the fields come from the sentence that people read."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from dflashq.core.json_logging import JsonFormatter, event, fields


def record(
    message: str, *args: object, name: str = "dflashq.stages.generate.batch"
) -> logging.LogRecord:
    return logging.LogRecord(name, logging.INFO, "batch.py", 1, message, args, None, "settle")


@pytest.mark.parametrize(
    ("message", "args", "expected"),
    [
        ("batch begins: run=%s batch=%s", ("r", "b"), "batch_begins"),
        ("stopping the engine", (), "stopping_the_engine"),
        ("engine %s is down: %s", ("e", "x"), "engine_is_down"),
        ("engine %s ready at %s", ("e", "x"), "engine_ready_at"),
        ("told: notice=%s", ("x",), "told"),
        ("entries=%d are held", (3,), "batch.settle"),
        ("%d generations in flight", (3,), "generations_in_flight"),
        ("%s: %s", ("a", "b"), "batch.settle"),
    ],
)
def test_the_event_is_named_by_its_sentence_without_the_values(
    message: str, args: tuple[object, ...], expected: str
) -> None:
    assert event(record(message, *args)) == expected


def test_the_values_of_a_sentence_never_change_its_event() -> None:
    first, second = (record("lease lost: run=%s: %s", run, "why") for run in ("a", "b: c"))
    assert event(first) == event(second) == "lease_lost"


def test_other_libraries_are_named_as_such() -> None:
    assert event(record("mingle: searching", name="celery.worker.consumer")) == "celery"


def test_fields_keep_their_types() -> None:
    made = record(
        "done: run=%s index=%d share=%.2f%% of %s counts=%s key=%r", "r", 7, 0.5, "x", {"a": 1}, "k"
    )
    assert fields(made) == {"run": "r", "index": 7, "share": 0.5, "counts": {"a": 1}, "key": "k"}
    assert fields(record("no fields")) == {}


def test_a_line_is_one_object_with_the_sentence_whole() -> None:
    formatter = JsonFormatter({"worker": "gpu0@h", "gpu": "0"})
    row = json.loads(formatter.format(record("batch begins: run=%s\nattempt=%d", "r", 2)))
    assert row["event"] == "batch_begins"
    assert (row["run"], row["attempt"], row["worker"], row["gpu"]) == ("r", 2, "gpu0@h", "0")
    assert row["message"] == "batch begins: run=r\nattempt=2"
    assert row["level"] == "info"
    assert row["at"].endswith("+00:00")


def test_a_traceback_is_in_its_line() -> None:
    made = record("it broke: run=%s", "r")
    try:
        raise RuntimeError("the cause")
    except RuntimeError:
        made.exc_info = sys.exc_info()
    text = JsonFormatter().format(made)
    assert "\n" not in text
    assert "RuntimeError: the cause" in json.loads(text)["traceback"]


def test_a_field_cannot_take_the_place_of_what_every_line_has() -> None:
    row = json.loads(JsonFormatter({"worker": "w0"}).format(record("told: event=%s", "other")))
    assert row["event"] == "told"
