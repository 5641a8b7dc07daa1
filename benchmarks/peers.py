"""Install the environments of the peers at pinned versions, separate from ours, and from each other where they need
different versions of the same package."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
VENVS = HERE / ".peers-venv"
NODE = HERE / "contenders" / "node"


class PeersMissing(Exception):
    """The peers could not be installed."""


def command(env: str | None) -> list[str]:
    """Return the command that runs a script in this environment. Install it first if the pinned versions changed."""
    if env is None:
        return [sys.executable]
    return [_node()] if env == "node" else [str(_python(env))]


def _python(env: str) -> Path:
    wanted = HERE / "requirements" / f"{env}.txt"
    venv = VENVS / env
    interpreter = venv / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    stamp = venv / ".installed"
    if not stamp.exists() or stamp.read_text() != wanted.read_text():
        _run(sys.executable, "-m", "venv", "--clear", str(venv))
        pip = (str(interpreter), "-m", "pip", "install", "-q", "--disable-pip-version-check")
        _run(*pip, "-r", str(wanted))
        stamp.write_text(wanted.read_text())
    return interpreter


def _node() -> str:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise PeersMissing("no node or no npm: install Node 20 or newer")
    lock, stamp = NODE / "package-lock.json", NODE / "node_modules" / ".installed"
    if not stamp.exists() or stamp.read_text() != lock.read_text():
        _run(npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts", folder=NODE)
        stamp.write_text(lock.read_text())
    return node


def _run(*command: str, folder: Path | None = None) -> None:
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise PeersMissing(lines[-1] if lines else f"exit code {done.returncode}")
