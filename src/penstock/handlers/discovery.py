"""Discovery: imports worker files and reads their definitions. A bad file does not stop the others."""

from __future__ import annotations

import hashlib
import importlib
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
from ..core.worker_folders import prefer_folders
from ..ports.bridge import Bridge
from ..ports.script_files import SCRIPT_SUFFIXES, DescribeScripts, Evaluate, ScriptDescription
from .decorators import FlowDefinition, StepDefinition, read_definitions
from .entities import EntityDefinition
from .handler import DEFINITIONS_ATTRIBUTE, JobDefinition
from .module_contract import find_handle, read_module
from .nodes import NodeDefinition
from .script_contract import read_script
from .source_hash import SourceHashes

QueueNames = Literal["filename", "directory"]
ImportMode = Literal["file", "module"]
Definition = FlowDefinition | StepDefinition | JobDefinition | NodeDefinition | EntityDefinition


@dataclass(frozen=True)
class DiscoveredHandler:
    """One definition, and the file and function it is in."""

    worker_id: str
    file: str
    export: str
    definition: Definition
    sources: str = ""  # hash of the file and of the project's modules it imports, as they were loaded


_MISSING_PACKAGE = re.compile(r"Cannot find package '((?:@[\w.-]+/)?[\w.-]+)'")


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


@dataclass(frozen=True)
class Scripts:
    """How to read worker files in another language."""

    describe: DescribeScripts
    evaluate: Evaluate


def discover(
    directory: str | Path,
    queue_names: QueueNames = "filename",
    import_mode: ImportMode = "file",
    scripts: Scripts | None = None,
) -> tuple[list[DiscoveredHandler], list[LoadProblem]]:
    """Read all definitions under a directory; skip files and folders whose name starts with `_` or `.`."""
    if not os.path.isdir(directory):
        raise ConfigError(f"folder {shorten(str(directory))} not found; set 'dir' to the folder of your worker files")
    root = Path(directory).resolve()
    found: list[DiscoveredHandler] = []
    problems: list[LoadProblem] = []
    hashes = SourceHashes((root, root.parent))
    for path in _files(root):
        more, failed = _read_or_report(path, root, queue_names, import_mode)
        sources = hashes.compute(path) if more else ""
        found += [replace(item, sources=sources) for item in more]
        problems += failed
    if scripts is not None and (files := list(_script_files(root))):
        more, failed = _read_scripts(files, root, queue_names, scripts)
        found, problems = sorted([*found, *more], key=lambda item: item.file), [*problems, *failed]
    return found, problems


def discover_file(
    path: Path,
    queue_names: QueueNames = "filename",
    import_mode: ImportMode = "file",
    scripts: Scripts | None = None,
) -> tuple[list[DiscoveredHandler], list[LoadProblem]]:
    """Read the definitions of one file; its folder counts as the folder of the worker files."""
    if path.suffix not in (".py", *SCRIPT_SUFFIXES) or not path.is_file():
        raise ConfigError(f"worker file {shorten(str(path))} not found; pass the path of a .py, .ts or .js file")
    if path.suffix != ".py":
        if scripts is None:
            raise ConfigError(f"{shorten(str(path))} is not loaded, because the setting typescript is off")
        return _read_scripts([path], path.parent, queue_names, scripts)
    found, problems = _read_or_report(path, path.parent, queue_names, import_mode)
    sources = SourceHashes((path.parent, path.parent.parent)).compute(path) if found else ""
    return [replace(item, sources=sources) for item in found], problems


def load_definitions(
    path: Path, root: Path, queue_names: QueueNames = "filename", import_mode: ImportMode = "file"
) -> list[Definition]:
    """Import one file and return its definitions. Raises what the import raises."""
    return [item.definition for item in _read(path.resolve(), root.resolve(), queue_names, import_mode)]


def _read_or_report(
    path: Path, root: Path, queue_names: QueueNames, import_mode: ImportMode
) -> tuple[list[DiscoveredHandler], list[LoadProblem]]:
    try:
        return _read(path, root, queue_names, import_mode), []
    except DefinitionError as problem:
        return [], [LoadProblem(problem.kind, str(problem), str(path), _line(path, problem))]
    except PenstockError as problem:
        return [], [LoadProblem(problem.code, f"{path}: {problem}", str(path))]
    except BaseException as problem:
        if isinstance(problem, KeyboardInterrupt):
            raise
        return [], [_import_problem(path, problem)]


def find_bridges(directory: str | Path) -> list[Bridge]:
    """Return the `bridges` of the files that were just discovered."""
    root = Path(directory).resolve()
    found: list[Bridge] = []
    for path in _files(root):
        with suppress(DefinitionError):  # `discover` has reported it
            found += _bridges(sys.modules.get(_module_name(path)) or sys.modules.get(_dotted_name(path)[0]))
    return found


def _bridges(module: ModuleType | None) -> list[Bridge]:
    declared = getattr(module, "bridges", None)
    if not isinstance(declared, list | tuple) or not any(isinstance(one, Bridge) for one in declared):
        return []  # the name means something else there
    for one in declared:
        if not isinstance(one, Bridge) or isinstance(one, type):
            raise DefinitionError(
                f"`bridges` must be a list of bridge objects such as [PgBoss(…)], but it contains {shorten(one)}"
            )
    return list(declared)


def _files(root: Path) -> Iterator[Path]:
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        # Skip links that lead out of the directory.
        if not any(part.startswith(("_", ".")) for part in parts) and path.resolve().is_relative_to(root):
            yield path


def _script_files(root: Path) -> Iterator[Path]:
    for path in sorted(root.rglob("*")):
        if path.suffix not in SCRIPT_SUFFIXES or path.name.endswith((".d.ts", ".d.mts")):
            continue
        parts = path.relative_to(root).parts
        is_hidden = any(part.startswith(("_", ".")) or part == "node_modules" for part in parts)
        if not is_hidden and path.is_file() and path.resolve().is_relative_to(root):
            yield path


def _read_scripts(
    files: list[Path], root: Path, queue_names: QueueNames, scripts: Scripts
) -> tuple[list[DiscoveredHandler], list[LoadProblem]]:
    """Read TypeScript and JavaScript files. Without Node, they are reported, and the Python files work."""
    try:
        described = scripts.describe(files)
    except ConfigError as problem:
        return [], [LoadProblem(problem.code, str(problem), str(file)) for file in files]
    found: list[DiscoveredHandler] = []
    problems: list[LoadProblem] = []
    for item in described:
        try:
            found += _read_script(item, root, queue_names, scripts)
        except DefinitionError as problem:
            problems.append(LoadProblem(problem.kind, str(problem), item.file))
        except PenstockError as problem:
            problems.append(LoadProblem(problem.code, f"{item.file}: {problem}", item.file))
    problems += [_script_problem(item) for item in described if item.error is not None]
    return found, problems


def _read_script(
    item: ScriptDescription, root: Path, queue_names: QueueNames, scripts: Scripts
) -> list[DiscoveredHandler]:
    path = Path(item.file)
    definition = None if item.error is not None else read_script(item, to_kebab_case(path.stem), scripts.evaluate)
    if definition is None:
        return []
    worker_id = path.relative_to(root).with_suffix("").as_posix()
    queue = default_queue(path, root, queue_names)
    return [DiscoveredHandler(worker_id, item.file, "default", _with_queue(definition, queue), item.version)]


def _script_problem(item: ScriptDescription) -> LoadProblem:
    assert item.error is not None
    text = f"{item.error.name}: {item.error.message}"
    package = _MISSING_PACKAGE.search(text)
    hint = f"; install it in the project: npm install {package[1]}" if package else ""
    message = f"the file cannot be imported: {text}{hint}; the other files are loaded"
    return LoadProblem("import_failed", message, item.file, item.error.line)


def _read(path: Path, root: Path, queue_names: QueueNames, import_mode: ImportMode) -> list[DiscoveredHandler]:
    module = _load(path, root) if import_mode == "file" else _import(path)
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
    config = getattr(module, "config", None) or {}
    handle = find_handle(module, config, str(path))
    if handle is not None:
        definition = read_module(handle, getattr(module, "queue", None), config, to_kebab_case(path.stem), str(path))
        export = getattr(handle, "__name__", "handle")
        found.append(DiscoveredHandler(worker_id, str(path), export, _with_queue(definition, queue)))
    elif hasattr(module, "config") and not found:
        raise DefinitionError(
            "this file defines 'config' but no handler. Define a function `handle(input, ctx)`, set config['handler'], "
            "or start the name of the file with '_' if it is not a worker file",
            where=str(path),
        )
    return found


def _with_queue(definition: Definition, queue: str) -> Definition:
    """Return the definition with the default queue of its file, unless it has its own."""
    match definition:
        case FlowDefinition(entry=entry):
            return replace(definition, entry=replace(entry, handler=entry.handler.with_queue(queue)))
        case NodeDefinition(handler=handler):
            return replace(definition, handler=handler.with_queue(queue))
        case EntityDefinition(handler=entity_handler):
            return replace(definition, handler=entity_handler.with_queue(queue))
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
        raise ConfigError(f"cannot import {path}; check that it is a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    prefer_folders(root, root.parent)  # worker files may import other files of the directory
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _import(path: Path) -> ModuleType:
    """Import a file by its module path, such as `workers.image.resize`, so that it can use relative imports."""
    name, home = _dotted_name(path)
    bad = next((part for part in name.split(".") if not part.isidentifier()), None)
    if bad is not None:
        raise ConfigError(
            f"the file cannot be imported as module {name!r}: {bad!r} is not a Python name; rename it, or set "
            'import_mode="file"'
        )
    if str(home) not in sys.path:
        sys.path.append(str(home))
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) == str(path):
        return known
    module = importlib.import_module(name)
    if getattr(module, "__file__", None) != str(path):
        raise ConfigError(
            f"importing {name!r} loads {getattr(module, '__file__', None) or 'a built-in module'} instead of this "
            'file; rename the file or its folder, or set import_mode="file"'
        )
    return module


def _dotted_name(path: Path) -> tuple[str, Path]:
    """Return the module path of a file, and the folder above its packages: those with an `__init__.py`, and its own."""
    home = path.parent
    while (home / "__init__.py").is_file() and home.parent != home:
        home = home.parent
    return ".".join(path.relative_to(home).with_suffix("").parts), home


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
            raise DefinitionError(f"{name} is not a handler; decorate it with @flow, @step, @job or @entity")
        file = _source_file(fn)
        found += [DiscoveredHandler(fn.__name__, file, fn.__name__, definition) for definition in definitions]
    return found


def _source_file(fn: Any) -> str:
    try:
        return inspect.getsourcefile(fn) or ""
    except (OSError, TypeError):  # an entity that was made from data
        return ""
