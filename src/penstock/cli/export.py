"""`penstock export RUN|--all [FILE]`."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO

from cyclopts import Parameter

from ..app.export import all_runs
from .confirm import NOT_DONE, Yes, confirmed
from .errors import UsageMistake, warn
from .options import USUAL_PLACE, Common
from .output import print_json
from .progress import progress
from .session import looking_app


def export(
    run: str | None = None,
    file: str | None = None,
    /,
    *,
    all: Annotated[bool, Parameter(negative="", show_default=False, help="Every run of the store.")] = False,
    yes: Yes = False,
    common: Common = USUAL_PLACE,
) -> int:
    """Write runs with their events, jobs and records as lines of JSON: export RUN [FILE], or export --all [FILE].

    Parameters
    ----------
    run
        The run's id.
    file
        Where to; else standard output.
    """
    if all and file is not None:
        raise UsageMistake("with --all only a FILE is given: penstock export --all runs.jsonl")
    if all:
        run, file = None, run
    elif run is None:
        raise UsageMistake("say which: the id of a RUN, or --all")
    if file is not None and Path(file).exists() and not confirmed(f"Overwrite {file}?", yes):
        return NOT_DONE
    count = asyncio.run(_export(common, run, file))
    if file is not None:
        told = f"Exported {count} run{'s' * (count != 1)} to {file}."
        print_json({"runs": count, "file": file}) if common.json else warn(told)
    return 0


async def _export(common: Common, run: str | None, file: str | None) -> int:
    async with looking_app(common) as app:
        if run is not None:
            await app.runs.get(run)  # a run that is not there is a mistake
        ids = [run] if run is not None else [id async for id in all_runs(app)]
        with _opened(file) as out, progress("Exporting", len(ids)) as advance:
            for id in reversed(ids):  # oldest first
                out.write(await app.runs.export(id) + b"\n")
                advance()
    return len(ids)


@contextmanager
def _opened(file: str | None) -> Iterator[BinaryIO]:
    """Standard output, or a file that is there only once it is complete."""
    if file is None:
        sys.stdout.flush()
        yield sys.stdout.buffer
        return
    part = f"{file}.part"
    try:
        with open(part, "wb") as out:  # runs can be private: the file is made as the caller's umask says
            yield out
        os.replace(part, file)
    except OSError as problem:
        raise UsageMistake(f"cannot write {file}: {problem.strerror}") from None
    finally:
        Path(part).unlink(missing_ok=True)
