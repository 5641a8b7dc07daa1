"""Loading worker files again while the process runs. A file that cannot be loaded keeps the version it had."""

from __future__ import annotations

import importlib
import linecache
import sys
import sysconfig
from importlib.util import cache_from_source
from pathlib import Path
from types import ModuleType

from .discovery import DiscoveredHandler, LoadProblem, QueueNames, discover
from .registry import Registry


def rediscover(
    directory: str | Path, queue_names: QueueNames, before: Registry
) -> tuple[list[DiscoveredHandler], list[LoadProblem]]:
    """Everything defined under a directory now; of a file that cannot be loaded, what it defined before.

    All files are imported anew, for one that did not change may import one that did, in the folder or beside it. Code
    that is running holds on to its old module and notices nothing.
    """
    root = Path(directory).resolve()
    forgotten = _forget(root)
    try:
        found, problems = discover(root, queue_names)
    finally:
        for name, module in forgotten.items():
            sys.modules.setdefault(name, module)
    broken = {problem.file for problem in problems}
    kept = [item for item in before.found if item.file in broken]
    return sorted([*found, *kept], key=lambda item: item.file), problems


def find_shared_modules(root: Path) -> dict[str, Path]:
    """The modules of the project that worker files can import and that lie outside of their folder, by name."""
    found = {name: path for name, path in _project(root.parent).items() if not path.is_relative_to(root)}
    return {name: path for name, path in found.items() if name != "__main__"}


def _forget(root: Path) -> dict[str, ModuleType]:
    """Takes the modules of a folder, and those beside it, out of Python's table, and what was compiled of them."""
    shared = find_shared_modules(root)
    for path in (*root.rglob("*.py"), *shared.values()):
        # Compiled code is told apart by whole seconds: an edit within the second would not be seen.
        Path(cache_from_source(str(path))).unlink(missing_ok=True)
    importlib.invalidate_caches()
    linecache.checkcache()
    names = {*_project(root), *shared}
    # A folder without a file of its own is a package too, and holds on to the modules in it.
    names |= {parent for name in names for parent in _parents(name) if parent in sys.modules}
    return {name: sys.modules.pop(name) for name in names}


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]


# What is never the project's, though it may lie under its folder: this package, and what is installed.
_OTHERS = (
    str(Path(__file__).parents[1]),
    *(path for name, path in sysconfig.get_paths().items() if name.endswith(("stdlib", "lib"))),
)


def _project(folder: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.endswith(".py") and not file.startswith(_OTHERS):
            path = Path(file)
            if path.is_relative_to(folder) and "site-packages" not in path.parts:
                found[name] = path
    return found
