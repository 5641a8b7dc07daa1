"""Replay saved runs against the current code, in a project's own tests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ..app import App
from ..app.export import saved_claims
from ..app.export_file import read_line
from ..app.preflight import PreflightReport, open_checker
from ..ports.unit import StateWrite, Unit


def replay(
    path: str | Path, handlers: Iterable[Callable[..., Any]] | None = None, *, dir: str | Path | None = None
) -> PreflightReport:
    """Re-run handlers on runs saved by `penstock export`; raise AssertionError if a step could not continue.

    Nothing is written and functions passed to `ctx.run` are not called. Code outside `ctx.run` runs again.
    """
    __tracebackhide__ = True
    lines = Path(path).read_bytes().splitlines()
    checked: PreflightReport = _run_in_thread(lambda: _check(lines, handlers, dir))
    if checked.broken:
        found = "\n".join(f"  run {t.run}, step {t.step}: {t.reason} [{t.code}]" for t in checked.broken)
        raise AssertionError(
            f"{checked.broken_steps} of {checked.steps} steps cannot continue with this code:\n{found}"
        )
    return checked


async def _check(
    lines: list[bytes], handlers: Iterable[Callable[..., Any]] | None, dir: str | Path | None
) -> PreflightReport:
    done = PreflightReport()
    async with App(":memory:", dir, handlers=handlers) as app, open_checker(app) as check:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            run = read_line(line, number, app._engines)
            done.runs += 1
            state = [StateWrite(key, bytes(value)) for key, value in run.state.items()]
            await app.store.commit([Unit(f"replay-{number}", state=state)])
            for claim in saved_claims(run, app.clock.now_ms()):
                done.steps += 1
                done.problems += await check.check(claim)
    return done


def _run_in_thread(make: Callable[[], Any]) -> Any:
    """Run a coroutine on a thread of its own: the test may already have a running loop."""
    answer: list[Any] = []

    def work() -> None:
        try:
            answer.append(asyncio.run(make()))
        except BaseException as problem:
            answer.append(problem)

    thread = threading.Thread(target=work, name="penstock-replay")
    thread.start()
    thread.join()
    if isinstance(answer[0], BaseException):
        raise answer[0]
    return answer[0]
