"""`penstock export RUN|--all [FILE]`."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Protocol

from cyclopts import Parameter

from ...app import App
from ...app.export import iterate_run_ids
from ...core.text import escape_json
from ..errors import EXIT_FAILED, UsageError, warn
from ..options import COMMON_DEFAULTS, CommonOptions
from ..output import Yes, confirm, print_json, print_text, show_progress
from ..parse import check_positional
from ..session import build_store_app
from ..tables import pluralize


def export(
    run: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    file: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    /,
    *,
    all: Annotated[bool, Parameter(negative="", show_default=False, help="Export every run in the store.")] = False,
    yes: Yes = False,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Write runs with their events, jobs and records as JSON lines: export RUN [FILE], or export --all [FILE].

    Parameters
    ----------
    run
        The run's id.
    file
        The file to write; default, and for -, standard output.
    """
    run, file = check_positional(run), check_positional(file)
    if all and file is not None:
        raise UsageError("--all takes only a FILE, for example: penstock export --all runs.jsonl")
    if all:
        run, file = None, run
    elif run is None:
        raise UsageError("pass either the id of a RUN or --all")
    file = None if file == "-" else file
    if file is not None and Path(file).exists() and not confirm(f"Overwrite {file}?", yes):
        return EXIT_FAILED
    count = asyncio.run(_export(common, run, file))
    if file is not None:
        message = f"Exported {pluralize(count, 'run')} to {file}."
        print_json({"runs": count, "file": file}) if common.json else warn(message)
    return 0


async def _export(common: CommonOptions, run: str | None, file: str | None) -> int:
    async with build_store_app(common) as app:
        if run is not None:
            line = await app.runs.export(run)  # an unknown run is an error
            with _open_output(file) as out:
                out.write(line + b"\n")
            return 1
        return await _export_all(app, file)


async def _export_all(app: App, file: str | None) -> int:
    total, count = 0, 0
    async for _ in iterate_run_ids(app):
        total += 1
    with _open_output(file) as out, show_progress("Exporting", total) as advance:
        async for line in app.runs.export_all():
            out.write(line + b"\n")
            count += 1
            advance()
    return count


class _Output(Protocol):
    def write(self, data: bytes, /) -> object: ...


class _TerminalOutput:
    """Standard output on a terminal: control characters are written as JSON escapes. The runs are the same."""

    def write(self, data: bytes) -> None:
        print_text(escape_json(data.decode("utf-8", "surrogateescape")).rstrip("\n"))


@contextmanager
def _open_output(file: str | None) -> Iterator[_Output]:
    """Open standard output, or a file that appears only once it is complete."""
    if file is None:
        sys.stdout.flush()
        yield _TerminalOutput() if sys.stdout.isatty() else sys.stdout.buffer
        return
    part = f"{file}.part"
    try:
        with open(part, "wb") as out:  # runs can be private: the caller's umask applies
            yield out
        os.replace(part, file)
    except OSError as problem:
        raise UsageError(f"cannot write {file}: {problem.strerror}") from None
    finally:
        Path(part).unlink(missing_ok=True)
