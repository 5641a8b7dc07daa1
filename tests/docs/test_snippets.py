"""Every python and console block of the README, the docs and the examples is executed, with the output it shows.

The commands of most pages run in processes that are forked (see fork_server); those of the README run as a user types them.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from snippets import Block, blocks_of, matches

import fork_server
from penstock.telemetry.logging import LOGGER, restore_loggers

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*/README.md")])
TYPED = {ROOT / "README.md"}  # in a shell, each process of its own
SHELL = re.compile(r"[|&;<>$`*?~#]")  # what only a shell can read
ASSIGNMENT = re.compile(r"(\w+)=(.*)", re.S)
PROVES = {
    ROOT / "README.md": "000-19.1",  # stores, settings and runners
    ROOT / "docs" / "howto" / "look-ups.md": "000-19.5",  # examples of a reducer and of a projection
    ROOT / "docs" / "howto" / "typescript.md": "000-19.6",  # one flow in both languages, with a mapping and a key
}
TUTORIAL = ROOT / "docs" / "tutorial.md"  # two terminals and a kill: test_tutorial plays it


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder, with our commands on the path and without what others left in the interpreter."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SHOP_PACE", "0.02")
    monkeypatch.setenv("COLUMNS", "120")
    modules, path = set(sys.modules), sys.path[:]
    with restore_loggers("", LOGGER, "shop"):  # a snippet configures logging
        yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.startswith("penstock_worker_"):
            del sys.modules[name]


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.spec(PROVES[page])] if page in PROVES else [])
        for page in PAGES
        if page != TUTORIAL
    ],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_snippets_of_the_page(page: Path, folder: Path) -> None:
    if "examples" in page.parts:
        shutil.copytree(
            page.parent, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".penstock", "__pycache__")
        )
    scope: dict[str, object] = {"__name__": "__main__"}
    for block in blocks_of(page):
        where = f"{page.relative_to(ROOT)}:{block.line}"
        if block.not_run is not None:
            continue
        if block.file is not None and block.language in ("python", "json", "ts"):
            _write(block, folder)
        elif block.language == "python":
            exec(compile(block.text, _saved(block, folder), "exec"), scope)
        elif block.language == "console":
            _type(block, where, in_shell=page in TYPED)


def _write(block: Block, folder: Path) -> None:
    assert block.file is not None
    target = folder / block.file
    target.parent.mkdir(parents=True, exist_ok=True)
    text = block.text if block.saved_as or block.language in ("python", "ts") else block.text.partition("\n")[2]
    target.write_text(text, "utf-8")


def _saved(block: Block, folder: Path) -> str:
    """The block as a file, so that errors and handlers know where they are from."""
    target = folder / f"snippet_{block.line}.py"
    target.write_text("\n" * block.line + block.text, "utf-8")
    return str(target)


def _type(block: Block, where: str, *, in_shell: bool) -> None:
    commands = block.commands()
    assert commands, f"{where}: a console block has lines that start with '$ '"
    for command in commands:
        output = None if in_shell else _run_forked(command.text)
        output = _run_in_shell(command.text) if output is None else output
        assert matches(command.shown, output), f"{where}: $ {command.text}\n" + "\n".join(output)


def _run_in_shell(command: str) -> list[str]:
    done = subprocess.run(command, shell=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120)
    return done.stdout.splitlines()


def _run_forked(command: str) -> list[str] | None:
    """Return the output of a command of ours or of a script; None if it needs a shell."""
    words = [] if SHELL.search(command) or not fork_server.HAS_PIDFD else shlex.split(command.replace("\\\n", " "))
    env = dict(os.environ)
    while words and (found := ASSIGNMENT.fullmatch(words[0])):
        env[found[1]] = found[2]
        del words[0]
    if words[:1] == ["python"] and words[1].endswith(".py"):
        del words[0]
    elif words[:1] != ["penstock"]:
        return None
    output, _ = fork_server.start(words, env, Path.cwd()).communicate(timeout=120)
    return output.splitlines()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_are_valid(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.S)
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"


def test_images_load_nothing_from_the_network() -> None:
    for picture in ROOT.glob("docs/images/*.svg"):
        text = picture.read_text("utf-8")
        assert "@font-face" not in text
        assert "url(http" not in text
