"""Discovery: imports worker files and reads their definitions. A bad file does not stop the others."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import os
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from ..core.errors import ConfigError, DefinitionError, PenstockError
from ..core.text import shorten
from ..ports.bridge import Bridge
from .decorators import FlowDefinition, StepDefinition, read_definitions
from .handler import DEFINITIONS_ATTRIBUTE, JobDefinition
from .module_contract import read_module

QueueNames = Literal["filename", "directory"]
Definition = FlowDefinition | StepDefinition | JobDefinition


@dataclass(frozen=True)
class DiscoveredHandler:
    """One definition, and the file and function it is in."""

    worker_id: str
    file: str
    export: str
    definition: Definition


@dataclass(frozen=True)
class LoadProblem:
    """A definition that could not be loaded, and how to fix it."""

    code: str
    message: str
    file: str = ""
    line: int = 0

    def __str__(self) -> str:
        location = f"{self.file}:{self.line}: " if self.line else f"{self.file}: " if self.file else ""
        return self.message if self.file and self.message.startswith(self.file) else f"{location}{self.message}"


def discover(
    directory: str | Path, queue_names: QueueNames = "filename"
) -> tuple[list[DiscoveredHandler], list[LoadProblem]]:
    """Read all definitions under a directory; skip files and folders whose name starts with `_` or `.`."""
    if not os.path.isdir(directory):
        raise ConfigError(f"folder {shorten(str(directory))} not found; set 'dir' to the folder of your worker files")
    root = Path(directory).resolve()
    found: list[DiscoveredHandler] = []
    problems: list[LoadProblem] = []
    for path in _files(root):
        try:
            found += _read(path, root, queue_names)
        except DefinitionError as problem:
            problems.append(LoadProblem(problem.kind, str(problem), str(path), _line(path, problem)))
        except PenstockError as problem:
            problems.append(LoadProblem(problem.code, f"{path}: {problem}", str(path)))
        except BaseException as problem:
            if isinstance(problem, KeyboardInterrupt):
                raise
            problems.append(_import_problem(path, problem))
    return found, problems


def find_bridges(directory: str | Path) -> list[Bridge]:
    """Return the `bridges` of the files that were just discovered."""
    root = Path(directory).resolve()
    found: list[Bridge] = []
    for path in _files(root):
        with suppress(DefinitionError):  # `discover` has reported it
            found += _bridges(sys.modules.get(_module_name(path)))
    return found


def _bridges(module: ModuleType | None) -> list[Bridge]:
    declared = getattr(module, "bridges", None)
    if not isinstance(declared, list | tuple) or not any(isinstance(one, Bridge) for one in declared):
        return []  # the name means something else there
    for one in declared:
        if not isinstance(one, Bridge) or isinstance(one, type):
            raise DefinitionError(f"bridges must contain bridges such as PgBoss(…), got {shorten(one)}")
    return list(declared)


def _files(root: Path) -> Iterator[Path]:
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        # Skip links that lead out of the directory.
        if not any(part.startswith(("_", ".")) for part in parts) and path.resolve().is_relative_to(root):
            yield path


def _read(path: Path, root: Path, queue_names: QueueNames) -> list[DiscoveredHandler]:
    module = _load(path, root)
    worker_id = path.relative_to(root).with_suffix("").as_posix()
    _bridges(module)  # report a bad one for this file
    queue = default_queue(path, root, queue_names)
    found: list[DiscoveredHandler] = []
    for export, fn in list(vars(module).items()):
        if (
            callable(fn)
            and getattr(fn, DEFINITIONS_ATTRIBUTE, None)
            and getattr(fn, "__module__", None) == module.__name__
        ):
            found += [
                DiscoveredHandler(worker_id, str(path), export, _with_queue(definition, queue))
                for definition in read_definitions(fn)
            ]
    handle = getattr(module, "handle", None)
    if callable(handle) and not getattr(handle, DEFINITIONS_ATTRIBUTE, None):
        config = getattr(module, "config", None) or {}
        definition = read_module(handle, getattr(module, "queue", None), config, to_kebab_case(path.stem), str(path))
        found.append(DiscoveredHandler(worker_id, str(path), "handle", _with_queue(definition, queue)))
    elif hasattr(module, "config") and not found:
        raise DefinitionError("this file defines 'config' but no function 'handle'; add one", where=str(path))
    return found


def _with_queue(definition: Definition, queue: str) -> Definition:
    """Return the definition with the default queue of its file, unless it has its own."""
    match definition:
        case FlowDefinition(entry=entry):
            return replace(definition, entry=replace(entry, handler=entry.handler.with_queue(queue)))
        case _:
            return replace(definition, handler=definition.handler.with_queue(queue))


def default_queue(path: Path, root: Path, queue_names: QueueNames) -> str:
    """Return the queue of a file without one: named after the file, or after its folder."""
    if queue_names == "directory" and path.parent != root:
        return to_kebab_case(path.parent.name)
    return to_kebab_case(path.stem)


def to_kebab_case(name: str) -> str:
    """Convert `sendEmail`, `send_email` and `Send Email` to `send-email`."""
    words = re.sub(r"([a-z0-9])([A-Z])", r"\1-\2", name)
    return re.sub(r"[^A-Za-z0-9]+", "-", words).strip("-").lower() or "default"


def _load(path: Path, root: Path) -> ModuleType:
    """Import a file under a unique module name, so that files of the same name do not collide."""
    name = _module_name(path)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    # Worker files may import other files of the directory.
    for folder in (str(root), str(root.parent)):
        if folder not in sys.path:
            sys.path.append(folder)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _module_name(path: Path) -> str:
    return f"penstock_worker_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}_{path.stem}"


def _line(path: Path, problem: BaseException) -> int:
    """Return the line of a file that a problem names, or the last line in its traceback; 0 if there is none."""
    file, _, number = (getattr(problem, "where", None) or "").rpartition(":")
    if file == str(path) and number.isdecimal():
        return int(number)
    line = 0
    if isinstance(problem, SyntaxError) and problem.filename == str(path):
        line = problem.lineno or 0
    for frame in traceback.extract_tb(problem.__traceback__):
        if frame.filename == str(path):
            line = frame.lineno or 0
    return line


def _import_problem(path: Path, problem: BaseException) -> LoadProblem:
    line = _line(path, problem)
    text = f"{type(problem).__name__}: {problem.msg if isinstance(problem, SyntaxError) else problem}"
    return LoadProblem(
        "import_failed", f"the file cannot be imported: {text}; the other files are loaded", str(path), line
    )


def read_functions(functions: list[Any]) -> list[DiscoveredHandler]:
    """Read the definitions of decorated functions."""
    found: list[DiscoveredHandler] = []
    for fn in functions:
        definitions = read_definitions(fn)
        if not definitions:
            name = getattr(fn, "__name__", None) or shorten(fn)
            raise DefinitionError(f"{name} is not a handler; decorate it with @flow, @step or @job")
        file = inspect.getsourcefile(fn) or ""
        found += [DiscoveredHandler(fn.__name__, file, fn.__name__, definition) for definition in definitions]
    return found
