"""A server without TLS is connected to without noise: the driver asks for TLS first, and leaves a future behind."""

from __future__ import annotations

import subprocess
import sys

import postgres_server

PROGRAM = """
import asyncio, sys
from penstock import App

async def look() -> None:
    for _ in range(12):  # it does not happen each time
        async with App(sys.argv[1], handlers=[]) as app:
            await app.runs.list()

asyncio.run(look())
"""


def test_a_server_without_tls_makes_no_noise() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, postgres_server.url()], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
