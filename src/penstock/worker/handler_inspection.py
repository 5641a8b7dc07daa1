"""Look at a running handler: where it is, the memory of its process, and its last log line."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from .attempt import Attempt


class Inspection(msgspec.Struct, frozen=True, rename="camel"):
    """A handler that runs now."""

    job: str
    queue: str
    attempt: int
    worker: str
    runner: str  # async, thread, process or node
    stack: str  # as a traceback shows it, innermost call last; empty for a runner that cannot say
    memory_mb: float  # of the process that the handler runs in
    log: str = ""  # its last log line, else the last line that it printed
    run: str | None = None
    step: str | None = None
    running_ms: int = 0


async def inspect_attempt(attempt: Attempt, worker: str) -> Inspection:
    """Look at an attempt of this process's worker."""
    work, channel = attempt.work, attempt.channel
    found = await channel.inspect()
    handler = work.handler
    return Inspection(
        job=work.claim.job,
        queue=work.claim.queue,
        attempt=work.claim.attempt,
        worker=worker,
        runner=handler.runner or ("async" if handler.is_async else "thread"),
        stack=found.stack,
        memory_mb=found.memory_mb or read_memory_mb(),
        log=channel.last_log or found.output,
        run=work.run_id,
        step=handler.name if work.run_id is not None else None,
        running_ms=channel.elapsed_ms,
    )


def read_memory_mb() -> float:
    """Return the memory that this process uses, in MB; 0 if the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0.0
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)
