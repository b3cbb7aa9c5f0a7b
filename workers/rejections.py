"""Rejected prompts, one JSON line each, in files that a person can search; bounded by rotation."""

from __future__ import annotations

import json
import logging
import re
from collections import OrderedDict
from logging.handlers import QueueHandler, QueueListener, RotatingFileHandler
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from dflashq.core.journal import fields, moment
from dflashq.stages.counting import REJECTIONS

FILE_BYTES, OLDER_FILES = 16 * 2**20, 3
_OPEN_FILES = 8
_FORBIDDEN = re.compile(r"[^A-Za-z0-9._@-]+")


class RunFiles(logging.Handler):
    """`rejected-RUN.WORKER.jsonl` under a folder; the workers of a host never share a file."""

    def __init__(self, folder: Path, worker: str) -> None:
        super().__init__()
        self._folder, self._worker = folder, _FORBIDDEN.sub("_", worker)
        self._files: OrderedDict[str, RotatingFileHandler] = OrderedDict()

    def path(self, run: str) -> Path:
        """Where the rejected prompts of a run are written now; older ones are in `.1`, `.2`, …"""
        return self._folder / f"rejected-{run}.{self._worker}.jsonl"

    def emit(self, record: logging.LogRecord) -> None:
        # What `fields` made of the record before it crossed to this thread.
        row: dict[str, Any] = record.__dict__["row"]
        try:
            text = json.dumps(row, ensure_ascii=False)
            self._file(str(row["run"])).emit(logging.makeLogRecord({"msg": text}))
        except OSError:
            self.handleError(record)

    def _file(self, run: str) -> RotatingFileHandler:
        if run not in self._files:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._files[run] = RotatingFileHandler(
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


class _Rows(QueueHandler):
    """Puts the fields of a record on the queue: they are named by its template."""

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        record.__dict__["row"] = {"at": moment(record), **fields(record)}
        return record


class RejectionFiles:
    """Sends what `stages` tells about rejections to files, from a thread: nobody waits for a disk.

    `start` and `stop` are safe to repeat; `stop` blocks until everything is written.
    """

    def __init__(self, folder: Path, worker: str) -> None:
        self._queue: SimpleQueue[logging.LogRecord] = SimpleQueue()
        self._rows, self.files = _Rows(self._queue), RunFiles(folder, worker)
        self._listener: QueueListener | None = None

    def start(self) -> None:
        if self._listener is None:
            channel = logging.getLogger(REJECTIONS)
            channel.setLevel(logging.INFO)
            channel.propagate = False
            channel.addHandler(self._rows)
            self._listener = QueueListener(self._queue, self.files)
            self._listener.start()

    def stop(self) -> None:
        if self._listener is not None:
            logging.getLogger(REJECTIONS).removeHandler(self._rows)
            self._listener.stop()
            self._listener = None
            self.files.close()
