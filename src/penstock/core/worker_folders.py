"""Worker folders on `sys.path`: the files of the App that is loading import the modules next to them.

Several Apps in one process may have modules of the same name. An entry of `sys.path` that was there before the first
App loaded comes first.
"""

from __future__ import annotations

import sys
from pathlib import Path

_added: list[str] = []  # the folders that this module added to `sys.path`, those of the last App first


def prefer_folders(*folders: Path) -> None:
    """Let imports look into these folders before those of other Apps. Modules of the same name are loaded again."""
    ours = [str(folder) for folder in folders if str(folder) in _added or str(folder) not in sys.path]
    if _added[: len(ours)] == ours and all(folder in sys.path for folder in ours):
        return
    others = [folder for folder in _added if folder not in ours]
    sys.path[:] = _arrange(ours)
    _added[:] = [*ours, *others]
    _forget_modules(set(others), folders)


def search_path(directory: Path) -> list[str]:
    """Return `sys.path` for a process that imports the worker files of one directory."""
    root = directory.resolve()
    return _arrange([folder for folder in map(str, (root, root.parent)) if folder in _added])


def _arrange(ours: list[str]) -> list[str]:
    """Return `sys.path` with these folders before those of other Apps."""
    rest = [path for path in sys.path if path not in ours]
    start = next((place for place, path in enumerate(rest) if path in _added), len(rest))
    return [*rest[:start], *ours, *rest[start:]]


def _forget_modules(others: set[str], folders: tuple[Path, ...]) -> None:
    """Remove modules of other folders from `sys.modules` where these folders have one of the same name."""
    names = {
        name
        for name, module in list(sys.modules.items())
        if _folder_of(name, getattr(module, "__file__", None)) in others and _has_module(folders, name)
    }
    # A folder without __init__.py is a package too, and keeps references to its modules.
    names |= {parent for name in names for parent in _parents(name) if _is_plain_folder(parent)}
    for name in list(sys.modules):
        if name in names:
            del sys.modules[name]


def _folder_of(name: str, file: object) -> str | None:
    """Return the entry of `sys.path` that a module was found in."""
    path = "/" + name.replace(".", "/")
    for ending in (f"{path}.py", f"{path}/__init__.py"):
        if isinstance(file, str) and file.endswith(ending):
            return file.removesuffix(ending)
    return None


def _has_module(folders: tuple[Path, ...], name: str) -> bool:
    """Return whether the folders have the module, or the package that it is in."""
    top = name.split(".")[0]
    files = [folder.joinpath(*name.split(".")) for folder in folders]
    return any(
        file.with_name(f"{file.name}.py").is_file()
        or (file / "__init__.py").is_file()
        or (folder / f"{top}.py").is_file()
        or (folder / top / "__init__.py").is_file()
        for folder, file in zip(folders, files, strict=True)
    )


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]


def _is_plain_folder(name: str) -> bool:
    return getattr(sys.modules.get(name), "__file__", "") is None
