"""Definitions of dags beside the worker files: `*.dag.json`, `*.dag.yaml`. A worker registers them when it starts."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ..core.errors import DagInvalid, PenstockError, StoreError

if TYPE_CHECKING:
    from ..dags.definition import Dag
    from .app import App

log = logging.getLogger("penstock.dags")
SUFFIXES = (".dag.json", ".dag.yaml", ".dag.yml")


async def register_dag_files(app: App) -> None:
    """Register each definition that is not that of the newest version. A file that is wrong is logged, and the others
    go on."""
    for path, dag in read_dag_files(app):
        try:
            if isinstance(dag, PenstockError):
                raise dag
            await _register(app, path, dag)
        except StoreError:
            raise  # the caller tries again
        except PenstockError as problem:
            log.error("cannot register the dag in %s: %s", path, problem)


async def _register(app: App, path: Path, dag: Dag) -> None:
    """Register a definition. One that equals an older version replaces a newer version that came from a file; it does
    not undo one that was registered by hand."""
    from ..dags.catalog import fingerprint_dag  # most projects have no dags

    known, notes = await app._dag_engine.catalog.find(dag.id), f"from {path.name}"
    fingerprint = fingerprint_dag(dag)
    versions = known.versions if known is not None else ()
    if versions and versions[-1].fingerprint == fingerprint:
        return
    same = next((one.version for one in reversed(versions) if one.fingerprint == fingerprint), None)
    if same is None:
        await app.dags.register(dag, notes=notes)
        return
    newest = versions[-1]
    if not newest.notes.startswith("from "):
        log.warning(
            "%s has version %d of dag %r, and runs start with version %d, which was registered by hand; to run the "
            "file's: `penstock dags register %s`",
            *(path, same, dag.id, newest.version, path),
        )
        return
    summary = await app.dags.register(dag, notes=f"{notes}, again version {same}")
    log.warning("%s is version %d of dag %r again: registered it as version %d", path, same, dag.id, summary.latest)


class DagFileProblem(msgspec.Struct, frozen=True, rename="camel"):
    """What is wrong, or probably wrong, with a definition beside the worker files."""

    file: str
    message: str
    is_warning: bool = False

    def __str__(self) -> str:
        return f"{self.file}: {self.message}"


async def check_dag_files(app: App) -> list[DagFileProblem]:
    """Return what is wrong with the definitions beside the worker files, and the warnings about them."""
    problems: list[DagFileProblem] = []
    if list_dag_files(app):
        await app.dags.list()  # those that others have registered are no unknown ones
    for path, dag in read_dag_files(app):
        try:
            if isinstance(dag, PenstockError):
                raise dag
            problems += [DagFileProblem(path.name, str(one), True) for one in app.dags.check(dag)]
            problems += [DagFileProblem(path.name, one) for one in await app.dags._triggers.find_problems(dag)]
        except PenstockError as problem:
            found = getattr(problem, "problems", None) or [str(problem)]
            problems += [DagFileProblem(path.name, one) for one in found]
    return problems


def read_dag_files(app: App) -> Iterator[tuple[Path, Dag | PenstockError]]:
    """Yield the definitions beside the worker files, or why one cannot be used."""
    from ..dags.files import read_dag_file

    first: dict[str, tuple[Path, Dag]] = {}
    for path in list_dag_files(app):
        try:
            dag = read_dag_file(path)
        except PenstockError as problem:
            yield path, problem
            continue
        other, same = first.setdefault(dag.id, (path, dag))
        if same != dag:
            text = f"dag {dag.id!r} is defined twice, first in {other}; the first is used. Rename one of them"
            yield path, DagInvalid([text])
        elif other == path:
            yield path, dag


def list_dag_files(app: App) -> list[Path]:
    """Return the definitions beside the worker files of an App."""
    folder = Path(app.settings.dir)
    return find_dag_files(folder) if app._has_dir and folder.is_dir() else []


def find_dag_files(folder: Path) -> list[Path]:
    """Return the definitions in a folder and those below it, by name."""
    return sorted(path for path in folder.rglob("*.dag.*") if path.name.endswith(SUFFIXES) and path.is_file())
