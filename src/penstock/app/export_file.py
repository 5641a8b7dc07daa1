"""Reads an export line by line, as often as needed: a file may be larger than the memory."""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO

from ..core.errors import BadArgument
from ..worker.engines import Engines
from . import export_format
from .export_format import BadExport, SavedRun, decode_line
from .import_check import check_run

ExportSource = bytes | Path | BinaryIO
_GZIP, _MARKS = b"\x1f\x8b", (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")


def read_line(line: bytes, number: int, engines: Engines | None = None) -> SavedRun:
    """Read a line of an export, or raise BadExport with the number of the line, the field and its value.

    With `engines`, the engine of the run's kind also reads the record and the jobs."""
    saved = decode_line(line, number)
    check_run(saved, number, engines)
    return saved


class ExportFile:
    """The lines of an export. One line is in memory at a time."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._start = file.tell()
        self._digests: dict[str, bytes] = {}  # of the lines of runs

    def check(self, engines: Engines | None = None) -> Iterator[SavedRun]:
        """Read every run; raise BadExport for a line that is not a run, and for a run that occurs twice."""
        self._digests.clear()
        for number, line in self._lines():
            saved = read_line(line, number, engines)
            if saved.run in self._digests:
                raise BadExport(
                    f"line {number}: run {saved.run!r} occurs twice in the file; remove one of the two lines"
                )
            self._digests[saved.run] = _digest(line)
            yield saved
            del saved  # before the next one is read

    def read_checked(self) -> Iterator[SavedRun]:
        """Read the runs again; raise BadExport at a line that has changed since `check`."""
        for number, line in self._lines():
            saved = decode_line(line, number)
            if self._digests.get(saved.run) != _digest(line):
                raise BadExport(
                    f"line {number}: another program changed the file during the import. The runs before this line "
                    "are imported: import the others again, from a file that nobody writes"
                )
            yield saved
            del saved

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        self._file.seek(self._start)
        for number, line in enumerate(_split(self._file), 1):
            if number == 1:
                _check_encoding(line)
            if line.strip():
                yield number, line


@contextmanager
def open_export(source: ExportSource) -> Iterator[ExportFile]:
    """Open an export: its bytes, its path or an open file. What cannot be read twice is copied to a temporary file."""
    with ExitStack() as opened:
        if isinstance(source, bytes):
            file: BinaryIO = io.BytesIO(source)
        elif isinstance(source, Path):
            file = opened.enter_context(_open_path(source))
        else:
            file = _check_file(source)
        if not file.seekable():
            file = _copy(file, opened.enter_context(tempfile.TemporaryFile()))
        yield ExportFile(file)


def _open_path(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except (OSError, ValueError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else problem
        raise BadArgument(f"cannot read {os.fspath(path)!r}: {reason}; pass the path of a file") from None


def _check_file(source: BinaryIO) -> BinaryIO:
    if isinstance(source, (io.RawIOBase, io.BufferedIOBase)) and not source.closed and source.readable():
        return source
    raise BadArgument(
        "data must be the bytes that `export` returned, a Path, or a file that was opened with mode 'rb', "
        f"got a {type(source).__name__}"
    )


def _copy(source: BinaryIO, target: BinaryIO) -> BinaryIO:
    for number, line in enumerate(_split(source), 1):
        if len(line) > export_format.MAX_LINE_BYTES:
            decode_line(line, number)  # raises
        target.write(line)
    target.seek(0)
    return target


def _split(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file. One that is too long is cut after its first byte too many."""
    while True:
        try:
            line = file.readline(export_format.MAX_LINE_BYTES + 2)  # a line break, and one byte too many
        except OSError as problem:
            raise BadArgument(f"cannot read the export: {problem.strerror}") from None
        if not line:
            return
        yield line


def _check_encoding(line: bytes) -> None:
    if line.startswith(_GZIP):
        raise BadExport("the file is compressed; decompress it first, for example with gunzip")
    if line.startswith(_MARKS):
        raise BadExport("the file starts with a byte order mark; save it as UTF-8 without one")


def _digest(line: bytes) -> bytes:
    return blake2b(line, digest_size=16).digest()
