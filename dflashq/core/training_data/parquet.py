"""Rows as Parquet, which `datasets` reads; pyarrow is imported at the first use."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

from dflashq.core.errors import UsageError

GROUP = 250
_TOKENS = {"input_ids": "list<int32>", "loss_mask": "list<int8>"}
ROW_COLUMNS = _TOKENS | {
    "id": "string",
    "index": "int64",
    "turn": "int32",
    "source": "string",
    "domain": "string",
}
PACK_COLUMNS = _TOKENS | {
    "boundaries": "list<int32>",
    "ids": "list<string>",
    "indexes": "list<int64>",
    "turns": "list<int32>",
    "sources": "list<string>",
    "domains": "list<string>",
}


class ParquetFile:
    """A Parquet file (zstd) that is written in memory, one group of rows at a time.

    `columns` maps names to Arrow types as text. The same rows give the same bytes under one version
    of pyarrow. UsageError when pyarrow is not installed.
    """

    def __init__(self, columns: dict[str, str]) -> None:
        try:
            import pyarrow  # noqa: PLC0415 - an extra, and half a second of import
            from pyarrow import parquet  # noqa: PLC0415
        except ImportError:
            raise UsageError(
                "Parquet needs pyarrow, which is not installed: pip install 'dflashq[export]'. "
                "Nothing was written."
            ) from None
        self._pyarrow, self._out = pyarrow, io.BytesIO()
        self._schema = pyarrow.schema([(name, _type(pyarrow, k)) for name, k in columns.items()])
        self._writer = parquet.ParquetWriter(self._out, self._schema, compression="zstd")
        self._group: list[dict[str, Any]] = []

    def add(self, row: dict[str, Any]) -> None:
        """Add a row, which has a value for every column."""
        self._group.append(row)
        if len(self._group) == GROUP:
            self._write_group()

    def _write_group(self) -> None:
        table = self._pyarrow.Table.from_pylist(self._group, schema=self._schema)
        self._writer.write_table(table)
        self._group = []

    def close(self) -> bytes:
        """Finish the file; its bytes."""
        if self._group:
            self._write_group()
        self._writer.close()
        return self._out.getvalue()


def parquet(rows: Iterable[dict[str, Any]], columns: dict[str, str]) -> bytes:
    """The bytes of a Parquet file with these rows."""
    file = ParquetFile(columns)
    for row in rows:
        file.add(row)
    return file.close()


def _type(pyarrow: Any, kind: str) -> Any:
    if kind.startswith("list<"):
        return pyarrow.list_(_type(pyarrow, kind[5:-1]))
    return pyarrow.type_for_alias(kind)
