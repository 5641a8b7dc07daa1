"""The frames of an exception that are the user's code, and their text."""

from __future__ import annotations

import asyncio
import os
import re
import sysconfig
import traceback
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

MAX_FRAMES = 5
MAX_FILE_CHARS = 400
MAX_SOURCE_CHARS = 200
_OURS = tuple(os.path.dirname(file) + os.sep for file in (os.path.dirname(__file__), asyncio.__file__))
_PYTHON = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib"))
_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_WRITTEN_FRAME = re.compile(
    r'^ *File "(?P<file>.+)", line (?P<line>\d+), in (?P<function>.+)$(?:\n {4}(?P<source>.*))?', re.M
)


class StackFrame(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of a traceback."""

    file: str
    line: int
    function: str
    source: str = ""


def extract_frames(problem: BaseException) -> list[traceback.FrameSummary]:
    """Return the frames of an exception without those of Penstock and asyncio, outermost first."""
    return [frame for frame in traceback.extract_tb(problem.__traceback__) if not frame.filename.startswith(_OURS)]


def user_frames(frames: Iterable[traceback.FrameSummary]) -> list[StackFrame]:
    """Return the last frames of the user's own files; of installed packages only if there are no others."""
    found = [StackFrame(one.filename, one.lineno or 0, one.name, one.line or "") for one in frames]
    return _select(found)


def parse_frames(stack: str) -> list[StackFrame]:
    """Return the last frames of the user's own files from the text of a Python traceback."""
    found = _WRITTEN_FRAME.finditer(stack)
    return _select([StackFrame(one["file"], int(one["line"]), one["function"], one["source"] or "") for one in found])


def format_frames(frames: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the lines that Python prints for recorded frames; files below the current folder get short paths."""
    lines = []
    for frame in frames:
        lines.append(f'  File "{short_path(frame["file"])}", line {frame["line"]}, in {frame["function"]}')
        if frame.get("source"):
            lines.append(f"    {frame['source']}")
    return lines


def describe_error(name: str | None, message: str | None) -> str:
    """Return `ValueError: no such order`, without repeating a name that the message starts with."""
    if not name or not message or message == name or message.startswith(f"{name}: "):
        return message or name or ""
    return f"{name}: {message}"


def short_path(file: str) -> str:
    """Return a path relative to the current folder if it is below it."""
    here = os.getcwd() + os.sep
    return file.removeprefix(here)


def _select(frames: list[StackFrame]) -> list[StackFrame]:
    return ([frame for frame in frames if _is_user_file(frame.file)] or frames)[-MAX_FRAMES:]


def _is_user_file(file: str) -> bool:
    if file.startswith("<frozen "):
        return False
    return not any(part in file for part in _PACKAGES) and not file.startswith(_PYTHON)


def format_task(task: asyncio.Task[Any]) -> str:
    """Return where a suspended or running task is, without the frames of Penstock and asyncio, innermost last."""
    found: list[traceback.FrameSummary] = []
    coro: Any = task.get_coro()
    while coro is not None:
        frame = getattr(coro, "cr_frame", None) or getattr(coro, "gi_frame", None)
        if frame is None:
            break
        found += traceback.extract_stack(frame, 1)
        coro = getattr(coro, "cr_await", None) or getattr(coro, "gi_yieldfrom", None)
    return format_stack(found)


def format_stack(frames: Iterable[traceback.FrameSummary]) -> str:
    """Return frames as text, without those of Penstock, asyncio and the interpreter's start."""
    kept = [frame for frame in frames if not frame.filename.startswith((*_OURS, "<frozen"))]
    return "".join(traceback.format_list(kept))
