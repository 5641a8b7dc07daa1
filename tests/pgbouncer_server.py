"""A PgBouncer of our own for the tests: the one on PATH or of the system, else Debian's package, unpacked where nothing else
sees it. Where there is none and none to be had, the tests that need it are skipped and say why."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from functools import cache
from pathlib import Path

import asyncpg
import pytest

from installs import install
from postgres_server import Server, free_port, is_open_to_all, link_folders, run_in_thread, unprivileged_user

SECONDS = 30  # for one command of apt
WANTED = "pgbouncer"


@cache
def binary() -> Path:
    """Return the program, or skip the test if there is none."""
    for folder in (*os.environ.get("PATH", "").split(os.pathsep), "/usr/sbin"):
        if (Path(folder) / WANTED).is_file():
            return Path(folder) / WANTED
    place = install(WANTED, _unpack)
    if os.geteuid() == 0 and not is_open_to_all(place):
        place = link_folders(place) / place.name
    return place / "usr" / "sbin" / WANTED


def _unpack(place: Path) -> None:
    """Unpack Debian's package, and the libraries it needs that are not here."""
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        pytest.skip("no pgbouncer on PATH, and no apt to get it with: install PgBouncer")
    with tempfile.TemporaryDirectory(dir=place.parent) as folder:
        for package in (WANTED, *_missing_libraries()):
            _download(package, Path(folder))
        for file in Path(folder).glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", str(file), str(place)], check=True, capture_output=True)
    place.chmod(0o755)


def _download(package: str, folder: Path) -> None:
    problem = _apt(folder, "download", package)
    if problem and os.geteuid() == 0:  # what there is may not be known yet
        problem = _apt(folder, "update") or _apt(folder, "download", package)
    if problem:
        pytest.skip(f"no pgbouncer on PATH, and apt does not give {package}: {problem}")


def _apt(folder: Path, *command: str) -> str | None:
    """Run apt-get. Return its error."""
    hurry = ("-o", "Acquire::Retries=0", "-o", "Acquire::http::Timeout=5", "-o", "Acquire::https::Timeout=5")
    try:
        done = subprocess.run(
            ["apt-get", "-qq", *hurry, *command], cwd=folder, capture_output=True, text=True, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {SECONDS} s"
    return done.stderr.strip() or "it failed without a word" if done.returncode else None


def _missing_libraries() -> list[str]:
    asked = subprocess.run(["apt-cache", "depends", WANTED], capture_output=True, text=True, timeout=SECONDS)
    names = [line.split()[-1] for line in asked.stdout.splitlines() if line.strip().startswith("Depends: lib")]
    there = subprocess.run(["dpkg-query", "-W", "-f", "${Package}\n", *names], capture_output=True, text=True)
    return [name for name in names if name not in there.stdout.split()]


class PgBouncer:
    """A PgBouncer in transaction mode, running until `stop`: each transaction gets another of `servers` connections."""

    def __init__(self, server: Server, folder: Path, servers: int = 3) -> None:
        self.port = free_port()
        self._log = folder / "pgbouncer.log"
        settings = folder / "pgbouncer.ini"
        settings.write_text(
            f"[databases]\n* = host=127.0.0.1 port={server.port} user=postgres\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {self.port}\nunix_socket_dir =\nauth_type = any\n"
            f"pool_mode = transaction\ndefault_pool_size = {servers}\nserver_round_robin = 1\n"
        )
        settings.chmod(0o644)
        program = binary()
        libraries = ":".join(str(path) for path in (program.parents[1] / "lib").glob("*-linux-gnu*"))
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [str(program), str(settings)],
                env={**os.environ, "LD_LIBRARY_PATH": libraries},
                **unprivileged_user(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._wait_for()

    def url(self, schema: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres?schema={schema}&pooling=transaction"

    def _wait_for(self) -> None:
        async def look() -> None:
            line = await asyncpg.connect(
                f"postgresql://postgres@127.0.0.1:{self.port}/postgres", statement_cache_size=0
            )
            await line.close()

        for _ in range(3000):
            assert self.process.poll() is None, f"pgbouncer ended at once: {self._log.read_text()}"
            try:
                return run_in_thread(look())
            except (OSError, asyncpg.PostgresError):
                time.sleep(0.01)
        raise AssertionError(f"pgbouncer did not answer within 30 s: {self._log.read_text()}")

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait()
