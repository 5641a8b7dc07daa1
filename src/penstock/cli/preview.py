"""`--dry-run` and `--if-version`: show what a command would write, and refuse it if its run has moved on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated

import msgspec
from cyclopts import Parameter

from ..app.app import App
from ..commit.preview import Preview, describe_preview
from .options import CommonOptions
from .output import print_json, print_text
from .session import build_admin_app

DryRun = Annotated[bool, Parameter(negative="", show_default=False, help="Write nothing; print what would be written.")]
IfVersion = Annotated[
    int | None, Parameter(help="Refuse the command if the run has another version; --dry-run prints it.")
]
IfAttempt = Annotated[
    int | None, Parameter(help="Refuse the command if the job has another attempt; --dry-run prints it.")
]


def print_dry_run(common: CommonOptions, act: Callable[[App], Awaitable[Preview]]) -> int:
    """Make a dry run and print its preview."""

    async def call() -> Preview:
        async with build_admin_app(common) as app:
            return await act(app)

    preview = asyncio.run(call())
    if common.json:
        print_json(msgspec.to_builtins(preview))
        return 0
    if not preview:
        print_text("Nothing would be written.")
    for line in describe_preview(preview):
        print_text(line)
    if preview.job is not None:
        print_text(f"Job {preview.job} has attempt {preview.version}; nothing was written.")
    elif preview.version is not None:
        print_text(f"Run {preview.run} has version {preview.version}; nothing was written.")
    return 0
