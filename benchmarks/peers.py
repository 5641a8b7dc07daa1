"""The environment the peers run in: installed here, at pinned versions, apart from ours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
VENV = HERE / ".peers-venv"
REQUIREMENTS = HERE / "requirements-peers.txt"
_STAMP = VENV / ".installed"


class PeersMissing(Exception):
    """The peers could not be installed."""


def python() -> Path:
    """The peers' interpreter, installed now if the pinned versions have changed."""
    if not _STAMP.exists() or _STAMP.read_text() != REQUIREMENTS.read_text():
        _install()
    return _interpreter()


def _interpreter() -> Path:
    return VENV / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def _install() -> None:
    _run(sys.executable, "-m", "venv", "--clear", str(VENV))
    pip = (str(_interpreter()), "-m", "pip", "install", "-q", "--disable-pip-version-check")
    _run(*pip, "-r", str(REQUIREMENTS))
    _STAMP.write_text(REQUIREMENTS.read_text())


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise PeersMissing(lines[-1] if lines else f"exit code {done.returncode}")
