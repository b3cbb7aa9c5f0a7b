"""Rejected prompts as JSON lines in files that a person can search; rotation bounds their size."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections import OrderedDict
from logging.handlers import QueueHandler, RotatingFileHandler
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from dflashq.core.json_logging import fields, moment
from dflashq.stages.generate.accounting import REJECTIONS
from dflashq.system.threads import SupervisedThread, report

THREAD = "rejections"
FILE_BYTES, OLDER_FILES = 16 * 2**20, 3
_OPEN_FILES = 8
_FORBIDDEN = re.compile(r"[^A-Za-z0-9._@-]+")


class _RotatingRejectionFile(RotatingFileHandler):
    """One file. A line that cannot be written is reported and left out."""

    def handleError(self, record: logging.LogRecord) -> None:
        exc = sys.exception()
        if exc is not None:
            report(THREAD, exc, "writing a line")


class RejectionFileHandler(logging.Handler):
    """Writes `rejected-RUN.WORKER.jsonl` into a folder; no two workers share a file."""

    def __init__(self, folder: Path, worker: str) -> None:
        super().__init__()
        self._folder, self._worker = folder, _FORBIDDEN.sub("_", worker)
        self._files: OrderedDict[str, _RotatingRejectionFile] = OrderedDict()

    def path(self, run: str) -> Path:
        """The file that rejected prompts of a run go to now; older ones are in `.1`, `.2`, `.3`."""
        return self._folder / f"rejected-{run}.{self._worker}.jsonl"

    def emit(self, record: logging.LogRecord) -> None:
        # The fields were taken from the record before it came to this thread.
        row: dict[str, Any] = record.__dict__["row"]
        try:
            text = json.dumps(row, ensure_ascii=False)
            self._file(str(row["run"])).emit(logging.makeLogRecord({"msg": text}))
        except Exception as exc:  # noqa: BLE001 - one line is lost here; S3 has the verdict
            report(THREAD, exc, "writing a line")

    def _file(self, run: str) -> _RotatingRejectionFile:
        if run not in self._files:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._files[run] = _RotatingRejectionFile(
                self.path(run), maxBytes=FILE_BYTES, backupCount=OLDER_FILES, encoding="utf-8"
            )
        self._files.move_to_end(run)
        if len(self._files) > _OPEN_FILES:
            self._files.popitem(last=False)[1].close()
        return self._files[run]

    def close(self) -> None:
        while self._files:
            self._files.popitem()[1].close()
        super().close()


class _RejectionQueueHandler(QueueHandler):
    """Puts the fields of a record on the queue, named as in the template of its message."""

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        record.__dict__["row"] = {"at": moment(record), **fields(record)}
        return record


class RejectionLog:
    """Writes the rejections that `stages` logs to files, from a thread: no batch waits for a disk.

    `start` and `stop` are safe to repeat; `stop` blocks until everything is written.
    """

    def __init__(self, folder: Path, worker: str) -> None:
        self._queue: SimpleQueue[logging.LogRecord | None] = SimpleQueue()
        self._handler = _RejectionQueueHandler(self._queue)
        self.files = RejectionFileHandler(folder, worker)
        self._thread: SupervisedThread | None = None

    def start(self) -> None:
        if self._thread is None:
            channel = logging.getLogger(REJECTIONS)
            channel.setLevel(logging.INFO)
            channel.propagate = False
            channel.addHandler(self._handler)
            self._thread = SupervisedThread(THREAD, self._write, wake=lambda: self._queue.put(None))
            self._thread.start()

    def stop(self) -> None:
        if self._thread is not None:
            logging.getLogger(REJECTIONS).removeHandler(self._handler)
            self._thread.stop()
            self._thread = None
            self.files.close()

    def _write(self) -> None:
        """Write what comes until the None of `stop`, which comes after everything else."""
        while (record := self._queue.get()) is not None:
            self.files.handle(record)
