"""Processes of the fault suites: `start` takes a module of `faultkit`, as `python -m` does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import IO, Any

import fork_server

from .config import FAULTS_DIR


def start(
    module: str,
    *arguments: str,
    env: dict[str, str] | None = None,
    has_stdout: bool = True,
    stderr: IO[Any] | None = None,
) -> Any:
    """Start `python -m faultkit.<module>` with a pipe as its standard input; return a Popen or what is like one."""
    variables = {**os.environ, "PYTHONHASHSEED": "0", **(env or {})}
    command = ["-m", f"faultkit.{module}", *arguments]
    if fork_server.HAS_PIDFD:
        return fork_server.start(
            command, variables, FAULTS_DIR, has_stdout=has_stdout, stderr=2 if stderr is None else stderr.fileno()
        )
    return subprocess.Popen(
        [sys.executable, *command], cwd=FAULTS_DIR, env=variables, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE if has_stdout else subprocess.DEVNULL, stderr=stderr, text=True, bufsize=1,
    )  # fmt: skip


def run(module: str, *arguments: str) -> Any:
    """Run `python -m faultkit.<module>` to its end and return the JSON that it prints."""
    text, _ = start(module, *arguments).communicate()
    assert text, f"faultkit.{module} {' '.join(arguments)} failed, see its standard error"
    return json.loads(text)
