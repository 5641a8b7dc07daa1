"""Worker files in TypeScript for the tests, and one warm Node host for many Apps."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import penstock.testing.contracts
from node_programs import node
from penstock.ports.runner import Channel, Task
from penstock.runners.node.program import HostOptions
from penstock.runners.node.runner import NodeFiles, NodeRunner

HANDLERS = Path(penstock.testing.contracts.__file__).with_name("runner_handlers.ts")
MODULES = {"_handlers": "", "_edge_handlers": "edge_", "_blob_handlers": "blob_"}


class SharedRunner:
    """A runner that stays open when one of its Apps closes."""

    def __init__(self, threads: int = 0) -> None:
        self.inner = NodeRunner(HostOptions(node(), threads=threads))

    async def run(self, task: Task, channel: Channel) -> Any:
        return await self.inner.run(task, channel)

    async def evaluate(self, file: str, version: str, path: Sequence[str | int], values: Sequence[Any]) -> Any:
        return await self.inner.evaluate(file, version, path, values)

    async def close(self) -> None:
        pass

    def install(self, monkeypatch: Any) -> None:
        """Let every App use this runner."""
        shared = self

        def make_runner(files: NodeFiles) -> SharedRunner:
            files._runner = shared  # type: ignore[assignment]
            return shared

        monkeypatch.setattr(NodeFiles, "make_runner", make_runner)


def write_contract_files(folder: Path) -> Path:
    """Write one worker file for each handler of the contract."""
    folder.mkdir()
    for module, part in MODULES.items():
        file = HANDLERS.with_name(f"runner_{part}handlers.ts")
        shutil.copy(file, folder / f"{module}.ts")
        names = [line.split(":")[0].strip(" '") for line in file.read_text().splitlines() if _defines(line)]
        for name in names:
            (folder / f"{name}.ts").write_text(
                f"import {{ handlers }} from './{module}'\n"
                f"const {{ queue, config, handle }} = handlers['{name}']!\n"
                "export { queue, config }\n"
                "export default handle\n"
            )
    return folder


def _defines(line: str) -> bool:
    return (
        line.startswith("  ")
        and line[2:3] not in " }"
        and any(f": {kind}(" in line for kind in ("flow", "step", "job"))
    )
