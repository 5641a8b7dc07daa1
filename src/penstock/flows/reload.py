"""Loading worker files again while the process runs. A file that cannot be loaded keeps the version it had."""

from __future__ import annotations

import importlib
import linecache
import sys
from importlib.util import cache_from_source
from pathlib import Path
from types import ModuleType

from .discovery import Found, Problem, QueueNames, discover
from .registry import Registry


def rediscover(directory: str | Path, queue_names: QueueNames, before: Registry) -> tuple[list[Found], list[Problem]]:
    """Everything defined under a directory now; of a file that cannot be loaded, what it defined before.

    All files are imported anew, for one that did not change may import one that did. Code that is running holds on to
    its old module and notices nothing.
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


def _forget(root: Path) -> dict[str, ModuleType]:
    """Takes the modules of a folder out of Python's table, and what was compiled of them; gives them."""
    for path in root.rglob("*.py"):
        # Compiled code is told apart by whole seconds: an edit within the second would not be seen.
        Path(cache_from_source(str(path))).unlink(missing_ok=True)
    importlib.invalidate_caches()
    linecache.checkcache()
    names = [name for name, module in list(sys.modules.items()) if _lies_in(module, root)]
    return {name: sys.modules.pop(name) for name in names}


def _lies_in(module: ModuleType, root: Path) -> bool:
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and Path(file).is_relative_to(root)
