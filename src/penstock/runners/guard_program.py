"""`python guard_program.py FOLDER`: kills the children of a worker that was killed, and what they have started.

The system kills a child with its worker, but not the processes that the child has started. A Node host looks for its
worker itself. This one outlives the
worker: it reads the process groups of the children from stdin, `+pid` and `-pid`, and kills those that are left when
stdin ends. It imports nothing of Penstock.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys


def main(folder: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin.buffer:
        if line.endswith(b"\n"):  # else the worker was killed while it wrote
            pid = int(line[1:])
            if line[:1] == b"+":
                groups.add(pid)
            else:
                groups.discard(pid)
    for pid in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1])
