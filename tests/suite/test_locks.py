"""The lock files: a version and hashes for everything, and no download URL."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PACKAGE, DEV = ROOT / "requirements" / "package.lock", ROOT / "requirements" / "dev.lock"
# Only what the repository holds: a list that grows with what is installed differs between processes that collect tests.
NODE = [ROOT / name for name in ("benchmarks/contenders/node", "tests/interop", "tests/interop/pgboss")]
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")


def pinned(lock: Path) -> dict[str, list[Requirement]]:
    """Return the requirements of a lock file by their names; some have several, for several Pythons."""
    found: dict[str, list[Requirement]] = {}
    for entry in lock.read_text().replace("\\\n", " ").splitlines():
        requirement = Requirement(entry.partition("--hash")[0])
        found.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    return found


@pytest.mark.parametrize("lock", [PACKAGE, DEV], ids=lambda lock: lock.name)
def test_every_package_has_a_version_and_hashes(lock: Path) -> None:
    entries = lock.read_text().replace("\\\n", " ").splitlines()
    assert len(entries) > 10
    for entry in entries:
        assert re.match(r"[a-z0-9._-]+(\[[a-z,]+\])?==\S+ ", entry), entry
        assert HASH.search(entry), f"no hash: {entry}"


@pytest.mark.parametrize("file", [PACKAGE, DEV, *(folder / "package-lock.json" for folder in NODE)], ids=str)
def test_no_lock_file_has_a_url(file: Path) -> None:
    lines = [line for line in file.read_text().splitlines() if "://" in line and '"url"' not in line]
    assert lines == [], "a lock file keeps hashes; where to download from is a setting of pip or npm"


@pytest.mark.parametrize(
    ("lock", "wanted"),
    [(PACKAGE, PROJECT["dependencies"]), (DEV, [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]])],
    ids=["package", "dev"],
)
def test_the_lock_satisfies_pyproject(lock: Path, wanted: list[str]) -> None:
    locked = pinned(lock)
    for requirement in map(Requirement, wanted):
        versions = locked.get(canonicalize_name(requirement.name), [])
        assert versions, f"{requirement} is in pyproject.toml and not in {lock.name}: run make lock"
        for version in versions:
            (exact,) = version.specifier
            assert Version(exact.version) in requirement.specifier, f"{version} is not {requirement}: run make lock"


def test_both_locks_agree() -> None:
    """`make test` adds to what `make demo` installed, and changes none of it."""
    dev = pinned(DEV)
    for name, versions in pinned(PACKAGE).items():
        assert {str(one.specifier) for one in versions} == {str(one.specifier) for one in dev[name]}, name


@pytest.mark.parametrize("folder", NODE, ids=lambda folder: folder.name)
def test_every_node_package_has_a_hash(folder: Path) -> None:
    lock = json.loads((folder / "package-lock.json").read_text())
    packages = {name: package for name, package in lock["packages"].items() if name}
    assert packages
    assert [name for name, package in packages.items() if not package.get("integrity", "").startswith("sha512-")] == []
    wanted = json.loads((folder / "package.json").read_text())["dependencies"]
    assert lock["packages"][""]["dependencies"] == wanted, "run make lock"
    assert {f"node_modules/{name}" for name in wanted} <= set(packages)
