"""The Node runner: one warm host for all handlers, replaced when it dies or when its files changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ...ports.runner import Channel, Task
from ...ports.script_files import ScriptDescription
from ..guard import Guard
from ..remote import RemoteRun
from .describe import describe_scripts
from .host_process import HostProcess
from .program import HostOptions, Node, find_node

FIRST_PAUSE_S, MAX_PAUSE_S = 0.1, 5.0
HEALTHY_AFTER_S = 5.0

Sources = Callable[[str, str], Mapping[str, str]]
"""Returns the files that a version of a worker file consists of, with the hash of each."""


def only_itself(file: str, version: str) -> Mapping[str, str]:
    """Return the worker file: what it imports is not known."""
    return {file: version}


class NodeRunner:
    """Runs handlers in a Node process, many at once."""

    def __init__(
        self,
        options: HostOptions = HostOptions(),  # noqa: B008 it is frozen
        on_close: Callable[[], None] | None = None,
        sources: Sources = only_itself,
    ) -> None:
        self._options = options
        self._on_close = on_close
        self._sources = sources
        self._guard: Guard | None = None
        self._node: Node | None = None
        self._hosts: list[HostProcess] = []  # the last one takes tasks
        self._lock = asyncio.Lock()
        self._pause = 0.0
        self._started_at = 0.0

    async def run(self, task: Task, channel: Channel) -> Any:
        host = await self._host_for(task.handler.file, task.handler.version)
        connection = host.open()
        try:
            return await RemoteRun(replace(task, memos={}), channel, connection).run()
        finally:
            host.close_connection(connection)

    async def evaluate(self, file: str, version: str, path: Sequence[str | int], values: Sequence[Any]) -> Any:
        """Call a function of a file's config."""
        host = await self._host_for(file, version)
        return await host.evaluate(file, path, values)

    @property
    def pids(self) -> list[int]:
        """The running Node processes."""
        return [host.pid for host in self._hosts if not host.is_lost]

    async def close(self) -> None:
        hosts, self._hosts = self._hosts, []
        if self._on_close is not None:
            self._on_close()
        await asyncio.gather(*(host.close() for host in hosts))
        guard, self._guard = self._guard, None
        if guard is not None:
            await asyncio.to_thread(guard.close)

    async def _host_for(self, file: str, version: str) -> HostProcess:
        """Return the newest host that has loaded this version of the file, or can load it."""
        sources = self._sources(file, version)
        host = self._find(file, version, sources)
        if host is None:
            async with self._lock:
                host = self._find(file, version, sources) or await self._start()
        if host.versions.get(file) != version:
            host.versions[file] = version
            host.loaded.update(sources)
            self._retire_superseded()
        return host

    def _find(self, file: str, version: str, sources: Mapping[str, str]) -> HostProcess | None:
        live = [host for host in self._hosts if not host.is_lost and host.is_ready and not host.is_retiring]
        for host in reversed(live):  # a file with an error keeps its old version, in an older host
            if host.versions.get(file) == version:
                return host
        newest = live[-1] if live else None
        return newest if newest is not None and newest.can_load(sources) else None

    def _retire_superseded(self) -> None:
        """Retire the hosts of whose files newer hosts have other versions. Running attempts end there first."""
        seen: set[str] = set()
        for host in reversed(self._hosts):
            if seen and seen.issuperset(host.versions):
                host.retire()
            seen.update(host.versions)
        self._hosts = [host for host in self._hosts if not host.is_lost]

    async def _start(self) -> HostProcess:
        loop = asyncio.get_running_loop()
        if self._hosts and self._hosts[-1].is_lost:
            is_healthy = loop.time() - self._started_at > HEALTHY_AFTER_S
            self._pause = 0.0 if is_healthy else min(self._pause * 2 or FIRST_PAUSE_S, MAX_PAUSE_S)
            await asyncio.sleep(self._pause)
        self._hosts = [host for host in self._hosts if not host.is_lost]
        if self._node is None:
            self._node = await asyncio.to_thread(find_node, self._options.node)
            await asyncio.to_thread(lambda node: node.stripper, self._node)
        if self._guard is None:
            self._guard = await asyncio.to_thread(Guard)
        host = HostProcess(self._node, self._options, self._guard)
        self._started_at = loop.time()
        self._hosts.append(host)
        await host.start()
        return host


class NodeFiles:
    """Node for one App: describes its worker files, and makes the runner of its worker."""

    def __init__(self, options: HostOptions, cache: Path) -> None:
        self._options = options
        self._cache = cache
        self._runner: NodeRunner | None = None
        self.sources: set[Path] = set()  # the files that were described, and those they import
        self._hashes: dict[tuple[str, str], Mapping[str, str]] = {}  # of the sources, by file and version

    def describe(self, files: Sequence[Path]) -> list[ScriptDescription]:
        """Describe worker files; see ports.script_files."""
        found = describe_scripts(files, self._options.node, self._cache)
        self.sources |= {Path(file) for one in found for file in one.sources if file}
        for one in found:
            self._hashes[one.file, one.version] = {file: seen for file, seen in one.sources.items() if file}
        return found

    def _sources_of(self, file: str, version: str) -> Mapping[str, str]:
        return self._hashes.get((file, version)) or only_itself(file, version)

    def make_runner(self) -> NodeRunner:
        """Return the worker's runner."""
        if self._runner is None:
            self._runner = self._new_runner(self._forget_runner)
        return self._runner

    def make_own_runner(self) -> NodeRunner:
        """Return a runner for one purpose, which its owner closes: the worker's stays open."""
        return self._new_runner(None)

    def _new_runner(self, on_close: Callable[[], None] | None) -> NodeRunner:
        return NodeRunner(self._options, on_close, self._sources_of)

    def _forget_runner(self) -> None:
        self._runner = None

    async def evaluate(self, file: str, version: str, path: Sequence[str | int], values: Sequence[Any]) -> Any:
        """Call a function of a file's config in the worker's host."""
        return await self.make_runner().evaluate(file, version, path, values)

    async def close(self) -> None:
        """End the Node processes."""
        if self._runner is not None:
            await self._runner.close()
