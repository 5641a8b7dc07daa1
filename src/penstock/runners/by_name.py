"""Runs each handler with the runner that it names."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from ..core.errors import ConfigError
from ..ports.runner import Channel, Runner, Task


class RunnersByName:
    """The runners of one worker. A named runner is made when its first task arrives, and closed with the worker."""

    def __init__(self, default: Runner, factories: Mapping[str, Callable[[], Runner]]) -> None:
        self._default = default
        self._factories = factories
        self.started: dict[str, Runner] = {}

    def run(self, task: Task, channel: Channel) -> Coroutine[Any, Any, Any]:
        name = task.handler.runner
        return (self._default if name is None else self.find(name)).run(task, channel)

    def find(self, name: str) -> Runner:
        """Return the runner of a name, and make it if it does not exist yet."""
        runner = self.started.get(name)
        if runner is None:
            make = self._factories.get(name)
            if make is None:
                raise ConfigError(
                    f"this worker has no runner {name!r}; it has: {', '.join(sorted(self._factories)) or 'none'}"
                )
            runner = self.started[name] = make()
        return runner

    async def close(self) -> None:
        await asyncio.gather(self._default.close(), *(runner.close() for runner in self.started.values()))
