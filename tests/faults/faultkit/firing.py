"""Triggers that many callers in two processes fire at once: one of them is first."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from penstock import App, flow
from penstock.testing.history import check, read_history

from .backends import Backend
from .length import HERE


class Report(msgspec.Struct):
    triggers: int
    calls: int
    fired: int = 0  # calls that were told they succeeded
    refused: dict[str, int] = {}  # what the others were told
    resumed: int = 0
    problems: list[str] = []

    def __str__(self) -> str:
        return (
            f"{self.triggers} triggers, {self.calls} calls: {self.fired} fired, {self.resumed} resumed, {self.refused}"
        )


async def race_fires(backend: Backend, folder: Path, *, triggers: int, fires: int, mutant: str | None = None) -> Report:
    """Starts `triggers` runs that wait, and has each of them fired `fires` times, half of that in each process."""
    report = Report(triggers, triggers * fires)
    url, tokens = backend.url(folder), [""] * triggers

    @flow("ask", emits=[])
    async def ask(x: Any, ctx: Any) -> Any:
        trigger = await ctx.wait.trigger("approval", type="api")
        await ctx.run("told", lambda: tokens.__setitem__(x, trigger.token))
        return await trigger.wait()

    async with App(url, handlers=[ask]) as app:
        async with app.workers.background(concurrency=50):
            runs = await asyncio.gather(*(app.start("ask", n) for n in range(triggers)))
            while not all(tokens):
                await asyncio.sleep(0.02)
            (folder / "tokens").write_text("\n".join(tokens))
            answers = await asyncio.to_thread(_fire, url, folder / "tokens", fires // 2, mutant)
            results = await asyncio.gather(*(app.result(run, timeout="60s") for run in runs))
        report.problems += [str(violation) for violation in check(await read_history(app.store))]
        report.resumed = await _resumed(app)
    _judge(report, answers, results)
    return report


def _fire(url: str, tokens: Path, times: int, mutant: str | None) -> list[dict[str, Any]]:
    more = ["--mutant", mutant] if mutant else []
    command = [sys.executable, "-m", "faultkit.firer", url, str(tokens), "--times", str(times), *more]
    firers = [
        subprocess.Popen([*command, "--name", name], cwd=HERE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for name in ("one", "other")
    ]
    for firer in firers:
        assert firer.stdout is not None
        assert firer.stdout.readline() == "loaded\n"
    for firer in firers:
        assert firer.stdin is not None
        firer.stdin.write("go\n")
        firer.stdin.flush()
    return [json.loads(firer.communicate(timeout=600)[0]) for firer in firers]


async def _resumed(app: App) -> int:
    seen, cursor = 0, ""
    while items := await app.store.feed(cursor, 1000):
        cursor = items[-1].cursor
        seen += sum(item.event.kind == "step.resumed" for item in items)
    return seen


def _judge(report: Report, answers: list[dict[str, Any]], results: list[Any]) -> None:
    refused: Counter[str] = Counter()
    fired = [payload for answer in answers for payload in answer["fired"]]
    for answer in answers:
        refused.update(answer["told"])
    report.fired, report.refused = len(fired), dict(refused)
    if sorted(fired) != sorted(results):
        report.problems.append("what runs were given is not what those who fired were told they gave")
