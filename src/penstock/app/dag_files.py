"""Definitions of dags beside the worker files: `*.dag.json`, `*.dag.yaml`. A worker registers them when it starts."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ..core.errors import PenstockError, StoreError

if TYPE_CHECKING:
    from .app import App

log = logging.getLogger("penstock.dags")
SUFFIXES = (".dag.json", ".dag.yaml", ".dag.yml")


async def register_dag_files(app: App) -> None:
    """Register each definition that no stored version has. A file that is wrong is logged, and the others go on.

    A version that is stored already is not registered again: a worker with an older file does not undo a newer one."""
    for path in list_dag_files(app):
        from ..dags.catalog import fingerprint_dag  # most projects have no dags
        from ..dags.files import read_dag_file

        try:
            dag = read_dag_file(path)
            known = await app._dag_engine.catalog.find(dag.id)
            if known is None or fingerprint_dag(dag) not in {one.fingerprint for one in known.versions}:
                await app.dags.register(dag, notes=f"from {path.name}")
        except StoreError:
            raise  # the caller tries again
        except PenstockError as problem:
            log.error("cannot register the dag in %s: %s", path, problem)


class DagFileProblem(msgspec.Struct, frozen=True, rename="camel"):
    """What is wrong, or probably wrong, with a definition beside the worker files."""

    file: str
    message: str
    is_warning: bool = False

    def __str__(self) -> str:
        return f"{self.file}: {self.message}"


async def check_dag_files(app: App) -> list[DagFileProblem]:
    """Return what is wrong with the definitions beside the worker files, and the warnings about them."""
    from ..dags.files import read_dag_file

    problems: list[DagFileProblem] = []
    for path in list_dag_files(app):
        try:
            dag = read_dag_file(path)
            problems += [DagFileProblem(path.name, str(one), True) for one in app.dags.check(dag)]
            problems += [DagFileProblem(path.name, one) for one in await app.dags._triggers.find_problems(dag)]
        except PenstockError as problem:
            found = getattr(problem, "problems", None) or [str(problem)]
            problems += [DagFileProblem(path.name, one) for one in found]
    return problems


def list_dag_files(app: App) -> list[Path]:
    """Return the definitions beside the worker files of an App."""
    folder = Path(app.settings.dir)
    return find_dag_files(folder) if app._has_dir and folder.is_dir() else []


def find_dag_files(folder: Path) -> list[Path]:
    """Return the definitions in a folder and those below it, by name."""
    return sorted(path for path in folder.rglob("*.dag.*") if path.name.endswith(SUFFIXES) and path.is_file())
