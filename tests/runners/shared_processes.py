"""A process runner that the cases of a class share: its children stay warm."""

from __future__ import annotations

from typing import Any

from penstock.ports.runner import Channel, Task
from penstock.runners.inprocess import InProcessRunner
from penstock.runners.process.runner import ProcessRunner


class SharedProcesses:
    """Runs importable handlers in the shared children, and the engine's own in this process."""

    def __init__(self, processes: ProcessRunner, threads: int) -> None:
        self._processes = processes
        self._here = InProcessRunner(threads)

    async def run(self, task: Task, channel: Channel) -> Any:
        runner = self._here if task.handler.function is None else self._processes
        return await runner.run(task, channel)

    async def close(self) -> None:
        await self._here.close()
