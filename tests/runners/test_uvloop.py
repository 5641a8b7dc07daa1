"""Children work on uvloop, which `penstock worker` and `penstock serve` use where it is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import uvloop

from node_programs import node
from penstock import App, job

TYPESCRIPT = "export const queue = 'shouts'\nexport default async (input: string) => input.toUpperCase()\n"


@job(queue="squares", runner="process")
def square(n: int) -> int:
    return n * n


def test_handlers_in_node_and_in_processes(tmp_path: Path) -> None:
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers" / "shouts.ts").write_text(TYPESCRIPT)

    async def run() -> list[Any]:
        async with App(":memory:", dir=str(tmp_path / "workers"), node=node()) as app, app.workers.background():
            shout = await app.jobs.result(await app.enqueue("shouts", "ada"), timeout="60s")
        async with App(":memory:", handlers=[square]) as app, app.workers.background():
            return [shout, await app.jobs.result(await app.enqueue("squares", 7), timeout="60s")]

    assert uvloop.run(run()) == ["ADA", 49]
