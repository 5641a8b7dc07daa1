"""Triggers that many callers in two processes fire at the same time: exactly one call wins."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from penstock import App, flow
from penstock.testing.history import check, read_history

from .backends import Backend
from .fork_server import start


class TriggerReport(msgspec.Struct):
    """What happened, and the problems found."""

    triggers: int
    calls: int
    fired: int = 0  # calls that succeeded
    refused: dict[str, int] = {}  # the errors of the other calls
    resumed: int = 0
    problems: list[str] = []

    def __str__(self) -> str:
        return (
            f"{self.triggers} triggers, {self.calls} calls: {self.fired} fired, {self.resumed} resumed, {self.refused}"
        )


async def race_triggers(
    backend: Backend, folder: Path, *, triggers: int, fires: int, mutant: str | None = None
) -> TriggerReport:
    """Start `triggers` runs that wait, and fire each trigger `fires` times, half of them in each process."""
    report = TriggerReport(triggers, triggers * fires)
    url, tokens = backend.url(folder), [""] * triggers

    @flow("ask", emits=[])
    async def ask(x: Any, ctx: Any) -> Any:
        trigger = await ctx.wait.trigger("approval", type="api")
        await ctx.run("publish", lambda: tokens.__setitem__(x, trigger.token))
        return await trigger.wait()

    async with App(url, handlers=[ask]) as app:
        async with app.workers.background(concurrency=50):
            runs = await asyncio.gather(*(app.start("ask", n) for n in range(triggers)))
            while not all(tokens):
                await asyncio.sleep(0.02)
            (folder / "tokens").write_text("\n".join(tokens))
            answers = await asyncio.to_thread(_fire_in_processes, url, folder / "tokens", fires // 2, mutant)
            results = await asyncio.gather(*(app.result(run, timeout="60s") for run in runs))
        report.problems += [str(violation) for violation in check(await read_history(app.store))]
        report.resumed = await _count_resumed(app)
    _check_answers(report, answers, results)
    return report


def _fire_in_processes(url: str, tokens: Path, times: int, mutant: str | None) -> list[dict[str, Any]]:
    more = ["--mutant", mutant] if mutant else []
    processes = [
        start("trigger_process", url, str(tokens), "--times", str(times), *more, "--name", name)
        for name in ("one", "other")
    ]
    for process in processes:
        assert process.stdout.readline() == "loaded\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    return [json.loads(process.communicate(timeout=600)[0]) for process in processes]


async def _count_resumed(app: App) -> int:
    count, cursor = 0, ""
    while items := await app.store.feed(cursor, 1000):
        cursor = items[-1].cursor
        count += sum(item.event.kind == "step.resumed" for item in items)
    return count


def _check_answers(report: TriggerReport, answers: list[dict[str, Any]], results: list[Any]) -> None:
    refused: Counter[str] = Counter()
    fired = [payload for answer in answers for payload in answer["fired"]]
    for answer in answers:
        refused.update(answer["errors"])
    report.fired, report.refused = len(fired), dict(refused)
    if sorted(fired) != sorted(results):
        report.problems.append("the results of the runs differ from the payloads of the calls that succeeded")
