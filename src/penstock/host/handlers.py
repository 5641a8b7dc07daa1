"""Finds the function of a task: imports its file, as the worker did."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from ..core.errors import ConfigError
from ..core.schemas import UnknownFields
from ..core.text import shorten
from ..handlers.decorators import FlowDefinition, read_definitions
from ..handlers.discovery import Definition, ImportMode, QueueNames, default_queue, load_definitions
from ..handlers.handler import Handler
from ..ports.runner import HandlerRef


class HostConfig(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """How the worker imports its files; the last argument of the host."""

    parent: int = 0  # the process id of the worker
    paths: list[str] = []  # of `sys.path`
    dir: str = ""
    import_mode: ImportMode = "file"
    queue_names: QueueNames = "filename"
    unknown_fields: UnknownFields = "refuse"
    cpu_s: int = 0
    files: int = 0
    memory_mb: int = 0
    lifts_limits: bool = False  # the worker has a blob store: values may be larger than the limits of the store


class HandlerFinder:
    """The handlers of this process. A file is imported once."""

    def __init__(self, config: HostConfig) -> None:
        self._config = config
        self._files: dict[str, list[Definition]] = {}

    def find(self, ref: HandlerRef) -> Handler:
        """Return the handler of a task."""
        definitions = self._files.get(ref.file)
        if definitions is None:
            path, root = Path(ref.file), Path(self._config.dir)
            home = root if self._config.dir and path.is_relative_to(root) else path.parent
            definitions = load_definitions(path, home, self._config.queue_names, self._config.import_mode)
            self._files[ref.file] = definitions
        for definition in definitions:
            handler = _handler_of(definition)
            if handler.name == ref.name and getattr(handler.fn, "__qualname__", None) == ref.function:
                is_set = handler.unknown_fields is not None
                return handler if is_set else replace(handler, unknown_fields=self._config.unknown_fields)
        raise ConfigError(
            f"{ref.file} has no handler {ref.name!r} ({ref.function}) when a child process imports it; define it at "
            "the top level of the file, and not under `if __name__ == '__main__'`"
        )

    def find_queue(self, fn: Callable[..., Any]) -> tuple[str, str | None]:
        """Return the queue and the name of a decorated function: of a flow, the name of the flow."""
        definitions = read_definitions(fn)
        if not definitions:
            name = getattr(fn, "__name__", None) or shorten(fn)
            raise ConfigError(f"{name} is not a handler; decorate it with @flow, @step or @job")
        definition, handler = definitions[0], _handler_of(definitions[0])
        file = Path(handler.file)
        root = Path(self._config.dir) if self._config.dir else file.parent
        queue = handler.queue
        if queue is None and os.fspath(file) in self._files:
            queue = default_queue(file, root, self._config.queue_names)
        name = definition.name if isinstance(definition, FlowDefinition) else handler.name
        return queue or "default", name


def _handler_of(definition: Definition) -> Handler:
    return definition.entry.handler if isinstance(definition, FlowDefinition) else definition.handler
