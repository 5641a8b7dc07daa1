"""The file that `penstock export` writes: for its owner alone, complete, and never through a link."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.cli.commands import export as command

pytestmark = pytest.mark.skipif(os.name == "nt", reason="modes and links of POSIX")


@pytest.fixture
def runs(penstock: Callable) -> None:
    penstock("run", "greet", "--key", "mine")


@pytest.mark.parametrize("args", [["mine"], ["--all"]])
def test_only_its_owner_can_read_it(penstock: Callable, project: Path, runs: None, args: list[str]) -> None:
    before = os.umask(0)
    try:
        assert penstock("export", *args, "runs.jsonl").code == 0
    finally:
        os.umask(before)
    assert stat.S_IMODE((project / "runs.jsonl").stat().st_mode) == 0o600
    assert [path.name for path in project.glob("runs.jsonl*")] == ["runs.jsonl"]


def test_an_existing_file_is_kept_without_yes(penstock: Callable, project: Path, runs: None) -> None:
    file = project / "runs.jsonl"
    file.write_text("precious")
    answer = penstock("export", "mine", "runs.jsonl")
    assert (answer.code, answer.err) == (
        2,
        "error: runs.jsonl exists; pass --yes to replace it, or another FILE [usage]\n",
    )
    assert file.read_text() == "precious"
    file.chmod(0o644)
    assert penstock("export", "mine", "runs.jsonl", "--yes").code == 0
    assert file.read_text().startswith('{"penstock":3')
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize("target", ["precious.txt", "absent.txt"])
def test_a_link_is_not_followed(penstock: Callable, project: Path, runs: None, target: str) -> None:
    (project / "precious.txt").write_text("precious")
    link = project / "runs.jsonl"
    link.symlink_to(project / target)
    assert penstock("export", "mine", "runs.jsonl").code == 2
    assert link.is_symlink()
    assert penstock("export", "mine", "runs.jsonl", "--yes").code == 0
    assert not link.is_symlink()
    assert (project / "precious.txt").read_text() == "precious"
    assert not (project / "absent.txt").exists()


def test_a_file_that_appears_meanwhile_is_kept(
    penstock: Callable, project: Path, runs: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def move(part: str, file: str, *, may_replace: bool) -> None:
        Path(file).write_text("precious")
        original(part, file, may_replace=may_replace)

    original = command._move
    monkeypatch.setattr(command, "_move", move)
    answer = penstock("export", "mine", "runs.jsonl")
    assert (answer.code, "was created meanwhile; nothing was written" in answer.err) == (2, True)
    assert (project / "runs.jsonl").read_text() == "precious"
    assert [path.name for path in project.glob("runs.jsonl*")] == ["runs.jsonl"]


@pytest.mark.parametrize("target", [os.devnull, "."])
def test_what_is_no_regular_file_is_refused(penstock: Callable, runs: None, target: str) -> None:
    answer = penstock("export", "mine", target, "--yes")
    assert (answer.code, "is not a regular file; omit FILE" in answer.err) == (2, True)
    assert not Path(os.devnull).is_file()
