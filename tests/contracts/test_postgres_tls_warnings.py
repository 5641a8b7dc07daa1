"""Connecting to a server without TLS prints no warning: asyncpg asks for TLS first and leaves a future behind."""

from __future__ import annotations

import subprocess
import sys

import postgres_server

PROGRAM = """
import asyncio, sys
from penstock import App

async def main() -> None:
    for _ in range(12):  # the warning does not come every time
        async with App(sys.argv[1], handlers=[]) as app:
            await app.runs.list()

asyncio.run(main())
"""


def test_a_server_without_tls_prints_no_warning() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, postgres_server.url()], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
