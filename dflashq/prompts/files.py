"""The bytes of a prompt file as UTF-8. Gzip and zstd are recognised by content, not by name."""

from __future__ import annotations

import codecs
import gzip
import zlib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import zstandard

from dflashq.core.errors import InputError

CHUNK = 1 << 20
# A piece of a zstd file may decompress to thousands of times its size: small pieces bound that.
ZSTD_SLICE = 1 << 10
GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
ZSTD_SKIPPABLE = b"\x2a\x4d\x18"
FOREIGN = {
    b"PAR1": "Parquet",
    b"PK\x03\x04": "zip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"ARROW1": "Arrow",
    b"version https://git-lfs": "a Git LFS pointer",
}
UTF8_BOM = codecs.BOM_UTF8
# The longest marks first, since the mark of UTF-32-LE begins with that of UTF-16-LE.
WIDE_BOMS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


def utf8_chunks(path: Path) -> Iterator[bytes]:
    """The text of a prompt file as UTF-8 bytes in pieces, without its byte order mark.

    UTF-16 and UTF-32 are recognised by their mark. Without a mark the bytes are passed on
    unchanged, valid UTF-8 or not. InputError, naming the file, when it cannot be read, is cut
    short, or has another format. Memory is constant; blocks on the disk.
    """
    try:
        with path.open("rb") as file:
            yield from _without_mark(path, _unpacked(path, file))
    except OSError as exc:
        raise InputError(
            f"{path} cannot be read: {exc.strerror or exc}. Nothing was enqueued."
        ) from exc


def _unpacked(path: Path, file: BinaryIO) -> Iterator[bytes]:
    head = file.read(32)
    file.seek(0)
    if head.startswith(GZIP_MAGIC):
        return _gunzip(path, file)
    if head.startswith(ZSTD_MAGIC) or head[1:4] == ZSTD_SKIPPABLE:
        return _unzstd(path, file)
    for magic, name in FOREIGN.items():
        if head.startswith(magic):
            raise InputError(
                f"{path} is {name}; prompts are read from JSON or JSON lines, plain, gzip or zstd. "
                "Convert it first. Nothing was enqueued."
            )
    return iter(lambda: file.read(CHUNK), b"")


def _gunzip(path: Path, file: BinaryIO) -> Iterator[bytes]:
    """The decompressed bytes of all members of a gzip file."""
    try:
        with gzip.open(file) as member:
            while chunk := member.read(CHUNK):
                yield chunk
    except EOFError:
        raise _cut_short(path, "gzip") from None
    except (gzip.BadGzipFile, zlib.error) as exc:
        raise InputError(f"{path} is broken gzip: {exc}. Nothing was enqueued.") from None


def _unzstd(path: Path, file: BinaryIO) -> Iterator[bytes]:
    """The decompressed bytes of all frames of a zstd file."""
    frame = zstandard.ZstdDecompressor().decompressobj()
    inside_frame = False
    try:
        while piece := file.read(ZSTD_SLICE):
            while piece:
                inside_frame = True
                if text := frame.decompress(piece):
                    yield text
                piece = frame.unused_data if frame.eof else b""
                if frame.eof:
                    frame, inside_frame = zstandard.ZstdDecompressor().decompressobj(), False
    except zstandard.ZstdError as exc:
        raise InputError(f"{path} is broken zstd: {exc}. Nothing was enqueued.") from None
    if inside_frame:
        raise _cut_short(path, "zstd")


def _cut_short(path: Path, kind: str) -> InputError:
    return InputError(
        f"{path} is cut short: its {kind} stream ends before its end mark. Copy it again; "
        "nothing was enqueued."
    )


def _without_mark(path: Path, chunks: Iterator[bytes]) -> Iterator[bytes]:
    head = b""
    for chunk in chunks:
        head += chunk
        if len(head) >= 4:
            break
    for mark, encoding in WIDE_BOMS:
        if head.startswith(mark):
            yield from _recoded(path, chain([head[len(mark) :]], chunks), encoding)
            return
    if len(head) > 1 and head[0:2].strip(b"{[ \r\n\t") == b"\0":
        raise InputError(
            f"{path} looks like UTF-16 without a byte order mark. Save it as UTF-8; nothing was "
            "enqueued."
        )
    yield head.removeprefix(UTF8_BOM)
    yield from chunks


def _recoded(path: Path, chunks: Iterator[bytes], encoding: str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(encoding)()
    try:
        for chunk in chunks:
            yield decoder.decode(chunk).encode()
        decoder.decode(b"", final=True)
    except UnicodeError as exc:
        raise InputError(
            f"{path} begins with the byte order mark of {encoding} but is not {encoding} ({exc}). "
            "Save it as UTF-8; nothing was enqueued."
        ) from None
