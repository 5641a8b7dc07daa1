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
from ...core.text import escape_json, pluralize
from ..errors import EXIT_FAILED, UsageError, warn
from ..options import COMMON_DEFAULTS, CommonOptions
from ..output import confirm, print_json, print_text, show_progress
from ..parse import check_positional
from ..session import build_store_app

_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


def export(
    run: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    file: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    /,
    *,
    all: Annotated[bool, Parameter(negative="", show_default=False, help="Export every run in the store.")] = False,
    yes: Annotated[
        bool, Parameter(name=("--yes", "-y"), negative="", show_default=False, help="Replace FILE if it exists.")
    ] = False,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Write runs with their events, jobs and records as JSON lines: export RUN [FILE], or export --all [FILE].

    Parameters
    ----------
    run
        The run's id.
    file
        The file to write; default, and for -, standard output. Only you can read it. An existing file is replaced only
        with --yes or after a question; a symbolic link is replaced, not followed.
    """
    run, file = check_positional(run), check_positional(file)
    if all and file is not None:
        raise UsageError("--all takes only a FILE, for example: penstock export --all runs.jsonl")
    if all:
        run, file = None, run
    elif run is None:
        raise UsageError("pass either the id of a RUN or --all")
    file = None if file == "-" else file
    if file is not None and not _may_write(Path(file), yes):
        return EXIT_FAILED
    count = asyncio.run(_export(common, run, file))
    if file is not None:
        message = f"Exported {pluralize(count, 'run')} to {file}."
        print_json({"runs": count, "file": file}) if common.json else warn(message)
    return 0


def _may_write(file: Path, yes: bool) -> bool:
    """Return whether to write a file: a new one, or one to replace. Raise UsageError if that must be asked for."""
    if not os.path.lexists(file):
        return True
    if not file.is_symlink() and not file.is_file():
        raise UsageError(f"{file} is not a regular file; omit FILE to write to standard output")
    if not yes and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"{file} exists; pass --yes to replace it, or another FILE")
    return confirm(f"Overwrite {file}?", yes)


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
    """Open standard output, or a file that appears only once it is complete.

    An export holds secrets: the file is created for its owner alone, under a new name that cannot be a link, and then
    takes the place of FILE, also of a link. If FILE was absent and appears meanwhile, it is not replaced."""
    if file is None:
        sys.stdout.flush()
        yield _TerminalOutput() if sys.stdout.isatty() else sys.stdout.buffer
        return
    part = f"{file}.{os.urandom(4).hex()}.part"
    is_new = not os.path.lexists(file)
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW, 0o600), "wb") as out:
            yield out
        _move(part, file, may_replace=not is_new)
    except OSError as problem:
        raise UsageError(f"cannot write {file}: {problem.strerror}") from None
    finally:
        Path(part).unlink(missing_ok=True)


def _move(part: str, file: str, *, may_replace: bool) -> None:
    """Give a complete file its name."""
    if not may_replace:
        try:
            os.link(part, file)  # unlike a rename, it fails if the name is taken
        except FileExistsError:
            raise UsageError(f"{file} was created meanwhile; nothing was written. Use another FILE") from None
        except OSError:  # no hard links here
            pass
        else:
            return
    os.replace(part, file)
