"""User code is type-checked with mypy and pyright in strict mode."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ACCEPTED, REFUSED = HERE / "accepted.py", HERE / "refused.py"
Errors = dict[int, list[str]]


def mypy(file: Path) -> Errors:
    args = ["--strict", "--no-error-summary", "--hide-error-context", "--show-absolute-path", "--no-pretty"]
    config = ROOT / "pyproject.toml"
    command = [sys.executable, "-m", "mypy", f"--config-file={config}", *args, str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode in (0, 1), done.stderr
    found: Errors = defaultdict(list)
    for name, line, message in re.findall(r"^(.+?):(\d+): error: (.*)$", done.stdout, flags=re.M):
        assert Path(name) == file, f"an error elsewhere: {name}:{line}: {message}"
        found[int(line)].append(message)
    return found


def pyright(file: Path) -> Errors:
    program = shutil.which("basedpyright", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("basedpyright is not installed: pip install -e '.[dev]'")
    config = {"include": [str(file)], "typeCheckingMode": "strict", "reportUnusedExpression": False}
    place = ROOT / ".mypy_cache" / f"pyright-{file.stem}.json"
    place.parent.mkdir(exist_ok=True)
    place.write_text(json.dumps({**config, "extraPaths": [str(ROOT / "src")]}))
    done = subprocess.run(
        [program, "--outputjson", "--pythonpath", sys.executable, "-p", str(place)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )
    found: Errors = defaultdict(list)
    for diagnostic in json.loads(done.stdout)["generalDiagnostics"]:
        if diagnostic["severity"] == "error":
            found[diagnostic["range"]["start"]["line"] + 1].append(diagnostic["message"])
    return found


CHECKERS = [mypy, pyright]


@pytest.mark.parametrize("check", CHECKERS, ids=lambda check: check.__name__)
def test_valid_code_is_accepted(check: Callable[[Path], Errors]) -> None:
    assert dict(check(ACCEPTED)) == {}


@pytest.mark.parametrize("check", CHECKERS, ids=lambda check: check.__name__)
def test_mistakes_are_reported_on_their_line(check: Callable[[Path], Errors]) -> None:
    wanted = {
        number: [part.strip() for part in line.partition("# E:")[2].split(" | ")]
        for number, line in enumerate(REFUSED.read_text("utf-8").splitlines(), 1)
        if "# E: " in line and not line.startswith('"""')
    }
    found = check(REFUSED)
    assert found.keys() == wanted.keys(), {line: found.get(line) for line in found.keys() ^ wanted.keys()}
    for line, parts in wanted.items():
        assert any(part in message for part in parts for message in found[line]), (line, parts, found[line])


def test_py_typed_exists() -> None:
    assert (ROOT / "src" / "penstock" / "py.typed").exists()
