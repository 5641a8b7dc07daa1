"""Print what it costs until Penstock is imported: CPU in ms, and memory of its own in MB."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

PROGRAM = "import asyncio, msgspec, penstock, penstock.host.host"


def cpu_ms() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return (used.ru_utime + used.ru_stime) * 1000


def private_mb() -> float:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


def report(cpu_before: float = 0.0, memory_before: float = 0.0) -> None:
    print(json.dumps([cpu_ms() - cpu_before, private_mb() - memory_before]), flush=True)


def fork() -> None:
    exec(PROGRAM)
    pid = os.fork()
    if pid == 0:
        report()
        os._exit(0)
    os.waitpid(pid, 0)


def start_sub_interpreter() -> None:
    """It shares the memory of this process, and from Python 3.12 on it has a lock of its own."""
    import _xxsubinterpreters as interpreters

    exec(PROGRAM)
    before = cpu_ms(), private_mb()
    interpreters.run_string(interpreters.create(), PROGRAM)
    report(*before)


if sys.argv[1] == "spawn":
    subprocess.run([sys.executable, __file__, "self"], check=True)
elif sys.argv[1] == "self":
    exec(PROGRAM)
    report()
elif sys.argv[1] == "fork":
    fork()
else:
    start_sub_interpreter()
