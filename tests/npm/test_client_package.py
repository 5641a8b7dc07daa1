"""The npm package: its types are correct, and its tests pass against a real `penstock serve`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import pytest

from node_programs import installed, node
from penstock.core.errors import PenstockError
from penstock.testing import TestApp

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
    _add_templates(folder)
    yield folder


def _add_templates(folder: Path) -> None:
    """Put the TypeScript files of `penstock init` where tsc checks them."""
    commands = resources.files("penstock.cli.commands")
    for place in ("template_ts", "patterns"):
        for file in Path(str(commands.joinpath(place))).rglob("*.ts.txt"):
            copy = folder / "tests" / "templates" / file.relative_to(str(commands)).with_suffix("")
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, copy)
    config = json.loads((folder / "tsconfig.json").read_text())
    config["compilerOptions"]["paths"] = {"penstock": ["./src/index.ts"]}
    (folder / "tsconfig.json").write_text(json.dumps(config))


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


@pytest.mark.spec("000-7.29", "000-9.6", "000-10.13", "003-1.4", "003-5.5", "003-10.3")
def test_the_tests_of_the_package_pass(package: Path) -> None:
    run(package, "node_modules/vitest/vitest.mjs", "run")


ZOD = """
import { z } from 'zod'
import { defineQueueConfig } from 'penstock'

const Input = z.object({ to: z.string().min(3), n: z.coerce.number().int().default(3) })
const Output = z.object({ sum: z.number().max(10) })
export const queue = 'typed'
export const config = defineQueueConfig({ inputSchema: Input, outputSchema: Output })
export default async (input: z.infer<typeof Input>) => ({ sum: input.n + input.to.length })
"""


async def test_zod_validates_in_a_worker_file(package: Path, tmp_path: Path) -> None:
    """Where work is started, by its JSON schema; in the host, with its conversions and defaults; and the result."""
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules" / "zod").symlink_to(package / "node_modules" / "zod")
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers" / "typed.ts").write_text(ZOD)
    async with TestApp(dir=tmp_path / "workers", node=node()) as app:
        assert app.registry.problems == ()
        assert await app.run_job("typed", {"to": "Ada"}) == {"sum": 6}
        assert await app.run_job("typed", {"to": "Ada", "n": "4"}) == {"sum": 7}
        with pytest.raises(PenstockError, match=r"the input of 'typed'.*to"):
            await app.run_job("typed", {"to": "A"})
        with pytest.raises(PenstockError, match="the result of 'typed' is invalid at sum"):
            await app.run_job("typed", {"to": "Ada", "n": 9})
