"""Finding worker files under a directory and reading what they define. One bad file does not stop the others."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
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
from ..ports.bridge import Bridge
from .decorators import FlowDefinition, StepDefinition, read_definitions
from .handler import DEFINITIONS_ATTRIBUTE, JobDefinition
from .module_contract import read_module

QueueNames = Literal["filename", "directory"]
Definition = FlowDefinition | StepDefinition | JobDefinition


@dataclass(frozen=True)
class DiscoveredHandler:
    """What one function of one file defines."""

    worker_id: str
    file: str
    export: str
    definition: Definition


@dataclass(frozen=True)
class LoadProblem:
    """Something that could not be loaded, and the way out."""

    code: str
    message: str
    file: str = ""
    line: int = 0

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}: " if self.line else f"{self.file}: " if self.file else ""
        return self.message if self.file and self.message.startswith(self.file) else f"{place}{self.message}"


def discover(
    directory: str | Path, queue_names: QueueNames = "filename"
) -> tuple[list[DiscoveredHandler], list[LoadProblem]]:
    """Everything defined under a directory; files and folders whose name begins with `_` or `.` are left alone."""
    root = Path(directory).resolve()
    if not root.is_dir():
        raise ConfigError(f"{directory} is not a directory: give the folder your worker files are in (setting 'dir')")
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
    """What the files that were just discovered name in a list `bridges`."""
    root = Path(directory).resolve()
    found: list[Bridge] = []
    for path in _files(root):
        with suppress(DefinitionError):  # it is among the problems
            found += _bridges(sys.modules.get(_module_name(path)))
    return found


def _bridges(module: ModuleType | None) -> list[Bridge]:
    declared = getattr(module, "bridges", None)
    if not isinstance(declared, list | tuple) or not any(isinstance(one, Bridge) for one in declared):
        return []  # a name that means something else there
    for one in declared:
        if not isinstance(one, Bridge) or isinstance(one, type):
            raise DefinitionError(f"bridges holds {one!r}, which is none: give things like PgBoss(…)")
    return list(declared)


def _files(root: Path) -> Iterator[Path]:
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        # A link that leads out of the directory is not part of it.
        if not any(part.startswith(("_", ".")) for part in parts) and path.resolve().is_relative_to(root):
            yield path


def _read(path: Path, root: Path, queue_names: QueueNames) -> list[DiscoveredHandler]:
    module = _load(path, root)
    worker_id = path.relative_to(root).with_suffix("").as_posix()
    _bridges(module)  # a wrong one is this file's problem
    queue = default_queue(path, root, queue_names)
    found: list[DiscoveredHandler] = []
    for export, fn in list(vars(module).items()):
        if (
            callable(fn)
            and getattr(fn, DEFINITIONS_ATTRIBUTE, None)
            and getattr(fn, "__module__", None) == module.__name__
        ):
            found += [
                DiscoveredHandler(worker_id, str(path), export, _placed(definition, queue))
                for definition in read_definitions(fn)
            ]
    handle = getattr(module, "handle", None)
    if callable(handle) and not getattr(handle, DEFINITIONS_ATTRIBUTE, None):
        config = getattr(module, "config", None) or {}
        definition = read_module(handle, getattr(module, "queue", None), config, to_kebab_case(path.stem), str(path))
        found.append(DiscoveredHandler(worker_id, str(path), "handle", _placed(definition, queue)))
    elif hasattr(module, "config") and not found:
        raise DefinitionError("there is a config but no function named 'handle'", where=str(path))
    return found


def _placed(definition: Definition, queue: str) -> Definition:
    """The definition with the queue its file gives it, if it names none."""
    match definition:
        case FlowDefinition(entry=entry):
            return replace(definition, entry=replace(entry, handler=entry.handler.on(queue)))
        case _:
            return replace(definition, handler=definition.handler.on(queue))


def default_queue(path: Path, root: Path, queue_names: QueueNames) -> str:
    """The queue of a file that names none: after the file, or after the folder it lies in."""
    if queue_names == "directory" and path.parent != root:
        return to_kebab_case(path.parent.name)
    return to_kebab_case(path.stem)


def to_kebab_case(name: str) -> str:
    """`sendEmail`, `send_email` and `Send Email` become `send-email`."""
    words = re.sub(r"([a-z0-9])([A-Z])", r"\1-\2", name)
    return re.sub(r"[^A-Za-z0-9]+", "-", words).strip("-").lower() or "default"


def _load(path: Path, root: Path) -> ModuleType:
    """Imports a file under a name of its own, so that two apps, or two files of one name, do not meet."""
    name = _module_name(path)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    # Worker files may import their neighbours in the directory.
    for place in (str(root), str(root.parent)):
        if place not in sys.path:
            sys.path.append(place)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _module_name(path: Path) -> str:
    return f"penstock_worker_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}_{path.stem}"


def _line(path: Path, problem: BaseException) -> int:
    """The line of a file that a problem is about, or the last of its lines that led to it; 0 if there is none."""
    place, _, number = (getattr(problem, "where", None) or "").rpartition(":")
    if place == str(path) and number.isdecimal():
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
        "import_failed", f"the file does not import: {text}; the other files are loaded", str(path), line
    )


def read_functions(functions: list[Any]) -> list[DiscoveredHandler]:
    """The definitions of decorated functions given by hand, without a directory."""
    found: list[DiscoveredHandler] = []
    for fn in functions:
        definitions = read_definitions(fn)
        if not definitions:
            name = getattr(fn, "__name__", repr(fn))
            raise DefinitionError(f"{name} is not marked with @flow, @step or @job, so it cannot be a handler")
        file = inspect.getsourcefile(fn) or ""
        found += [DiscoveredHandler(fn.__name__, file, fn.__name__, definition) for definition in definitions]
    return found
