"""Hashes of source files: a handler's file and the project's modules that it imports, directly or through others.

Files are found by the text of their `import` lines, so that a module counts whether a handler uses a function, a class
or a constant of it. Installed packages and the standard library do not count; neither does Penstock.
"""

from __future__ import annotations

import re
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path

from ..core.ids import digest

MAX_FILES = 1000
_IMPORT = re.compile(
    rb"^[ \t]*(?:from[ \t]+(?P<origin>[.\w]+)[ \t]+import[ \t]*(?P<names>\([^)]*\)|[^\n#]*)"
    rb"|import[ \t]+(?P<modules>[^\n#;]+))",
    re.MULTILINE,
)
_WORD = re.compile(r"[\w.]+")
_LIBRARIES = (
    str(Path(__file__).parents[1]),
    *(path for name, path in sysconfig.get_paths().items() if name.endswith(("stdlib", "lib"))),
)


class SourceHashes:
    """Reads each file once. Imports are looked up among the loaded modules and in `roots`."""

    def __init__(self, roots: Sequence[Path] = ()) -> None:
        self._roots = tuple(roots)
        self._files: dict[Path, tuple[bytes, list[Path]]] = {}

    def compute(self, path: Path) -> str:
        """Return the hash of a file and its imports: the same wherever the project lies; "" if it cannot be read."""
        seen = [path]
        for known in seen:
            if known not in self._files and not self._read(known):
                continue
            seen += [file for file in self._files[known][1] if file not in seen]
            if len(seen) > MAX_FILES:
                break
        found = sorted({self._files[file][0] for file in seen if file in self._files})
        return digest(b"".join(found)) if path in self._files else ""

    def _read(self, path: Path) -> bool:
        try:
            text = path.read_bytes().replace(b"\r\n", b"\n")
        except OSError:
            return False
        imports = [file for name in _imported_names(text) for file in self._find(name, path)]
        self._files[path] = sha256(text).digest(), imports
        return True

    def _find(self, name: str, importer: Path) -> Iterator[Path]:
        """Yield the files of a module and of the packages around it."""
        stem = name.lstrip(".")
        parts = stem.split(".") if stem else []
        if level := len(name) - len(stem):
            yield from _files_of(importer.parents[min(level, len(importer.parents)) - 1], parts)
            return
        if parts[0] in sys.stdlib_module_names:
            return
        files = [_file_of(".".join(parts[:end])) for end in range(1, len(parts) + 1)]
        if files[0] is not None and not is_project_file(files[0]):
            return  # an installed package
        yield from (Path(file) for file in files if file is not None)
        if files[-1] is None:  # not a module, not loaded yet, or a folder without __init__.py
            for root in (*self._roots, importer.parent):
                yield from _files_of(root, parts)


def is_project_file(file: str) -> bool:
    """Return whether a file belongs to the user's project."""
    parts = Path(file).parts
    return not file.startswith(_LIBRARIES) and "site-packages" not in parts and "dist-packages" not in parts


def _file_of(module: str) -> str | None:
    file = getattr(sys.modules.get(module), "__file__", None)
    return file if isinstance(file, str) and file.endswith(".py") else None


def _imported_names(text: bytes) -> Iterator[str]:
    for found in _IMPORT.finditer(text):
        if (modules := found["modules"]) is not None:
            for module in modules.decode(errors="replace").split(","):
                yield from _WORD.findall(module)[:1]
            continue
        origin = found["origin"].decode(errors="replace")
        yield origin
        for name in found["names"].decode(errors="replace").strip("() \t").split(","):
            for word in _WORD.findall(name)[:1]:  # it may be a module: from . import prices
                yield f"{origin}{word}" if origin.endswith(".") else f"{origin}.{word}"


def _files_of(folder: Path, parts: Sequence[str]) -> Iterator[Path]:
    for end in range(len(parts) + 1):
        base = folder.joinpath(*parts[:end])
        candidates = [base / "__init__.py", *([base.with_name(base.name + ".py")] if end else [])]
        yield from (file for file in candidates if file.is_file() and is_project_file(str(file)))
