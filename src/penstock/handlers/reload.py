"""Reload: imports worker files again while the process runs. A file that fails to import keeps its old version."""

from __future__ import annotations

import importlib
import linecache
import sys
import sysconfig
from collections.abc import Callable
from importlib.util import cache_from_source
from pathlib import Path
from types import ModuleType

from .discovery import (
    DiscoveredHandler,
    ImportMode,
    LoadProblem,
    QueueNames,
    Scripts,
    discover,
    discover_file,
)
from .registry import Registry


def rediscover(
    directory: str | Path,
    queue_names: QueueNames,
    import_mode: ImportMode,
    before: Registry,
    scripts: Scripts | None = None,
) -> tuple[list[DiscoveredHandler], list[LoadProblem]]:
    """Read all definitions under a directory again; a file that fails to import keeps its old definitions.

    All files are imported again: a file that did not change may import one that did. Running code keeps its old module.
    """
    root = Path(directory).resolve()
    return _load_again(root, lambda: discover(root, queue_names, import_mode, scripts), before)


def rediscover_file(
    path: Path, queue_names: QueueNames, import_mode: ImportMode, before: Registry, scripts: Scripts | None = None
) -> tuple[list[DiscoveredHandler], list[LoadProblem]]:
    """Read the definitions of one file again; a file that fails to import keeps its old definitions."""
    return _load_again(path.parent, lambda: discover_file(path, queue_names, import_mode, scripts), before)


def _load_again(
    root: Path, load: Callable[[], tuple[list[DiscoveredHandler], list[LoadProblem]]], before: Registry
) -> tuple[list[DiscoveredHandler], list[LoadProblem]]:
    unloaded = _unload_modules(root)
    try:
        found, problems = load()
    finally:
        for name, module in unloaded.items():
            sys.modules.setdefault(name, module)
    broken = {problem.file for problem in problems}
    kept = [item for item in before.found if item.file in broken]
    return sorted([*found, *kept], key=lambda item: item.file), problems


def find_shared_modules(root: Path) -> dict[str, Path]:
    """Return the project's modules outside the worker folder that worker files can import, by name."""
    found = {name: path for name, path in _find_project_modules(root.parent).items() if not path.is_relative_to(root)}
    return {name: path for name, path in found.items() if name != "__main__"}


def _unload_modules(root: Path) -> dict[str, ModuleType]:
    """Remove the modules of a folder, and those it shares, from `sys.modules`, with their compiled files."""
    shared = find_shared_modules(root)
    for path in (*root.rglob("*.py"), *shared.values()):
        # Python compares whole seconds of a file's time: it would miss an edit within the same second.
        Path(cache_from_source(str(path))).unlink(missing_ok=True)
    importlib.invalidate_caches()
    linecache.checkcache()
    names = {*_find_project_modules(root), *shared}
    # A folder without __init__.py is a package too, and keeps references to its modules.
    names |= {parent for name in names for parent in _parents(name) if parent in sys.modules}
    return {name: sys.modules.pop(name) for name in names}


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]


# Never part of the project, even inside its folder: this package and installed packages.
_NOT_PROJECT = (
    str(Path(__file__).parents[1]),
    *(path for name, path in sysconfig.get_paths().items() if name.endswith(("stdlib", "lib"))),
)


def _find_project_modules(folder: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.endswith(".py") and not file.startswith(_NOT_PROJECT):
            path = Path(file)
            if path.is_relative_to(folder) and "site-packages" not in path.parts:
                found[name] = path
    return found
