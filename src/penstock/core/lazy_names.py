"""Public names of a package that are imported when they are first used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package: `penstock --help` and a worker file load only what they use.

    Args:
        package: The package's `__name__`.
        modules: For each name its module, relative to the package.
    """
    found = vars(sys.modules[package])

    def import_name(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = found[name] = getattr(import_module(modules[name], package), name)
        return value

    return import_name, lambda: sorted({*found, *modules})
