"""An S3 server for the tests: moto's, in a process of its own on loopback. It speaks S3's protocol and keeps all in memory."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic, sleep

import httpx

START_TIMEOUT_S = 60
KEYS = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "tests"}


@contextmanager
def run_s3() -> Iterator[str]:
    """Yield the address of an S3 server."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, **KEYS})
    try:
        _wait(port, server)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def make_bucket(address: str, name: str) -> str:
    """Make a bucket and return the URL of a blob store in it."""
    httpx.put(f"{address}/{name}").raise_for_status()
    return f"s3://{name}/base?endpoint={address}&region=us-east-1"


def _wait(port: int, server: subprocess.Popen[bytes]) -> None:
    until = monotonic() + START_TIMEOUT_S
    while monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            assert server.poll() is None, "the S3 server did not start"
            sleep(0.05)
    raise TimeoutError("the S3 server did not start in time")
