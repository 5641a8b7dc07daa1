"""Limits of a child process: it dies with its worker, and uses no more than it may."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Let the system kill this process when the worker dies: on Linux; elsewhere the end of the socket does it."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent and os.getppid() != parent:  # it died before the line above
        os._exit(1)


def limit_resources(files: int, memory_mb: int) -> None:
    """Set the limits that are not 0: open files, and MB of memory, beyond which an allocation fails."""
    for kind, limit in ((resource.RLIMIT_NOFILE, files), (resource.RLIMIT_DATA, memory_mb * 2**20)):
        if limit:
            _, hard = resource.getrlimit(kind)
            most = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
            resource.setrlimit(kind, (most, most))


def limit_cpu(cpu_s: int) -> None:
    """Allow so many more seconds of CPU time, for the next handler. Beyond them, SIGXCPU ends the process."""
    if cpu_s:
        used = resource.getrusage(resource.RUSAGE_SELF)
        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        most = int(used.ru_utime + used.ru_stime) + cpu_s + 1
        resource.setrlimit(resource.RLIMIT_CPU, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
