"""The contract of TypeScript and JavaScript worker files: `queue`, `config` and a default function, read as data."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from ..core.errors import DefinitionError, NodeMissing
from ..core.text import shorten
from ..ports.script_files import Evaluate, ScriptDescription, ScriptFunction
from .decorators import FlowDefinition, StepDefinition
from .handler import Handler, JobDefinition
from .module_contract import read_module
from .nodes import NodeDefinition, NodeHandler

_DEFAULT_EXPORT = re.compile(r"^[ \t]*(?:export\s+default\b|module\.exports\b|export\s*\{)", re.MULTILINE)
_AWAITED = frozenset(("where", "delay", "match", "payload"))  # of a declared wait: an attempt calls them
_ROUTED = frozenset(("when", "map"))  # of a subscription: a worker calls them and decides then
# A worker calls them before it starts the run or adds the job.
_KEYS = frozenset(("idempotencyKey", "idempotency_key", "key", "rateKey", "rate_key"))


def read_script(
    found: ScriptDescription, name: str, evaluate: Evaluate
) -> FlowDefinition | StepDefinition | JobDefinition | NodeDefinition | None:
    """Read what a worker file defines; None for a file without a handler."""
    if not found.has_handler:
        if found.has_config or found.queue is not None:
            exported = "config" if found.has_config else "queue"
            raise DefinitionError(
                f"this file exports {exported!r} but no handler. Export a default function (input, ctx), or start the "
                "name of the file with '_' if it is not a worker file",
                where=found.file,
            )
        return None
    if found.queue is not None and not isinstance(found.queue, str):
        raise DefinitionError(f"queue must be a string, got {found.queue!r}", where=found.file)
    config = _Reader(found.file, found.version, evaluate).read(found.config, ())
    thread = _take_thread(config, found.file)
    definition = read_module(_make_stand_in(found.file), found.queue, config, name, found.file)
    if isinstance(definition, FlowDefinition):
        handler = _in_node(definition.entry.handler, found, thread)
        return replace(definition, entry=replace(definition.entry, handler=handler))
    if isinstance(definition, NodeDefinition):
        return NodeDefinition(cast(NodeHandler, _in_node(definition.handler, found, thread)))
    return replace(definition, handler=_in_node(definition.handler, found, thread))


def _take_thread(config: Any, file: str) -> bool | None:
    """Take `useWorkerThreads` out of a config: no other language has it."""
    thread = config.pop("useWorkerThreads", None) if isinstance(config, dict) else None
    if thread is not None and not isinstance(thread, bool):
        raise DefinitionError(f"config.useWorkerThreads must be true or false, got {shorten(thread)}", where=file)
    return thread


def _in_node(handler: Handler, found: ScriptDescription, thread: bool | None) -> Handler:
    line = find_handler_line(_read_source(found.file), found.name)
    return replace(handler, runner="node", file=found.file, line=line, version=found.version, thread=thread)


def _read_source(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""  # removed since it was described


def find_handler_line(source: str, name: str) -> int:
    """Return the line that declares the handler of this name, or else that of the default export; 1 if unclear."""
    declared = rf"^[ \t]*(?:export\s+)?(?:(?:async\s+)?function\*?|const|let|var)\s+{re.escape(name)}\b"
    found = (re.search(declared, source, re.MULTILINE) if name else None) or _DEFAULT_EXPORT.search(source)
    return source.count("\n", 0, found.start()) + 1 if found is not None else 1


def _make_stand_in(file: str) -> Callable[..., Any]:
    """Return the function of a handler that runs only in Node."""

    async def default(input: Any, ctx: Any) -> Any:  # noqa: ARG001
        raise NodeMissing(f"{file} runs in Node; start a worker to run it")

    default.__qualname__ = default.__name__ = "default"
    default.__code__ = default.__code__.replace(co_filename=file, co_firstlineno=1)  # errors name the worker file
    return default


class _Reader:
    """Turns the markers of a description into functions and schemas."""

    def __init__(self, file: str, version: str, evaluate: Evaluate) -> None:
        self._file = file
        self._version = version
        self._evaluate = evaluate

    def read(self, value: Any, path: tuple[str | int, ...]) -> Any:
        if isinstance(value, Mapping):
            if "$function" in value:
                return self._function(value["$function"])
            if "$schema_object" in value:
                return value["$schema_object"]  # None: only the host can validate
            return {key: self.read(item, (*path, key)) for key, item in value.items()}
        if isinstance(value, list):
            return [self.read(item, (*path, index)) for index, item in enumerate(value)]
        return value

    def _function(self, path: Sequence[str | int]) -> ScriptFunction:
        shown = ".".join(map(str, path))
        if not _may_be_function(path):
            raise DefinitionError(
                f"config.{shown} is a function, which a TypeScript or JavaScript file cannot have here: every process "
                "would call it, also those without Node. Use data, such as orderKey: 'customer.id'",
                code="script_function",
                where=self._file,
            )
        return ScriptFunction(self._file, self._version, path, self._evaluate)


def _may_be_function(path: Sequence[str | int]) -> bool:
    """Return whether a worker calls the function at a path, where Node is."""
    *owner, name = path
    if not owner:
        return name in _KEYS
    if owner[:1] in (["await"], ["wait"]):
        return len(path) == 2 and name in _AWAITED
    inside = owner[1:] if owner[:1] == ["flow"] else owner
    if not inside or inside[0] not in ("subscriptions", "startOn", "start_on"):
        return False
    return name in _ROUTED or (name == "where" and inside[-1:] == ["when"])
