"""If root runs the tests, Postgres runs as another user, who must be able to read its programs and its data."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from postgres_server import is_open_to_all, link_folders, open_temporary_folder, unprivileged_user

PROGRAM = "#!/bin/sh\necho reached\n"


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """A folder like root's home, with a program in it."""
    home = tmp_path / "home"
    (home / "package" / "bin").mkdir(parents=True)
    (home / "package" / "bin" / "server").write_text(PROGRAM)
    (home / "package" / "bin" / "server").chmod(0o755)
    home.chmod(0o700)
    return home


def test_an_inaccessible_parent_folder_is_detected(closed: Path) -> None:
    assert not is_open_to_all(closed / "package" / "bin")
    assert is_open_to_all(Path("/"))


def test_another_user_can_run_a_linked_program(closed: Path) -> None:
    program = link_folders(closed / "package") / "package" / "bin" / "server"
    done = subprocess.run([str(program)], cwd="/", capture_output=True, text=True, **unprivileged_user())
    assert done.stdout == "reached\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs servers as somebody else")
def test_the_temporary_folder_is_accessible_to_other_users(closed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(closed))
    assert is_open_to_all(open_temporary_folder())
