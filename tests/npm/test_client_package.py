"""The npm package: its types are correct, and its tests pass against a real `penstock serve`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from node_programs import installed, node

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "packages" / "client"
TIMEOUT_S = 400
pytestmark = pytest.mark.xdist_group("npm")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of the package with its development packages: nothing is installed in the repository."""
    folder = tmp_path_factory.mktemp("npm") / "client"
    ignored = shutil.ignore_patterns("node_modules", "dist")
    shutil.copytree(PACKAGE, folder, ignore=ignored)
    (folder / "node_modules").symlink_to(installed(PACKAGE, "package.json").parent / "node_modules")
    yield folder


def run(package: Path, *command: str) -> None:
    program = Path(sys.executable).parent / "penstock"
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK")}
    done = subprocess.run(
        [node(), *command],
        cwd=package,
        env={**variables, "PENSTOCK": str(program), "VECTOR_FOLDER": str(ROOT / "tests" / "vectors"), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, f"{done.stdout[-6000:]}{done.stderr[-2000:]}"


@pytest.mark.spec("000-16.14", "000-3.42")
def test_the_types_are_correct(package: Path) -> None:
    run(package, "node_modules/typescript/bin/tsc")


def test_every_export_is_built(package: Path) -> None:
    """Each export of package.json has its module and its types, and needs no runtime dependency."""
    run(package, "node_modules/typescript/bin/tsc", "-p", "tsconfig.build.json")
    declared = json.loads((package / "package.json").read_text())
    assert "dependencies" not in declared
    files = [file for export in declared["exports"].values() for file in export.values()]
    assert [file for file in files if not (package / file).is_file()] == []


@pytest.mark.spec("000-7.29", "000-9.6", "000-10.13", "003-1.4", "003-5.5")
def test_the_tests_of_the_package_pass(package: Path) -> None:
    run(package, "node_modules/vitest/vitest.mjs", "run")
