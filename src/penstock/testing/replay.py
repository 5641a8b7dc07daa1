"""Replaying saved runs against the present code, for a test of a project's own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ..app import App
from ..app.export import SavedRun, read_line, saved_claims
from ..app.preflight import Checked, checker
from ..ports.unit import StateWrite, Unit


def replay(
    path: str | Path, handlers: Iterable[Callable[..., Any]] | None = None, *, dir: str | Path | None = None
) -> Checked:
    """Runs the handlers again on what `penstock export` has saved of runs; an AssertionError says what would break.

    Nothing is written, and no function of `ctx.run` is called; code outside of those is executed.
    """
    __tracebackhide__ = True
    lines = Path(path).read_bytes().splitlines()
    saved = [read_line(line, number) for number, line in enumerate(lines, 1) if line.strip()]
    checked: Checked = _in_a_loop(lambda: _check(saved, handlers, dir))
    if checked.broken:
        said = "\n".join(f"  run {t.run}, step {t.step}: {t.reason} [{t.code}]" for t in checked.broken)
        raise AssertionError(f"{len(checked.broken)} of {checked.steps} steps cannot go on with this code:\n{said}")
    return checked


async def _check(
    saved: list[SavedRun], handlers: Iterable[Callable[..., Any]] | None, dir: str | Path | None
) -> Checked:
    done = Checked()
    async with App(":memory:", dir, handlers=handlers) as app, checker(app) as check:
        for number, run in enumerate(saved):
            done.runs += 1
            state = [StateWrite(key, bytes(value)) for key, value in run.state.items()]
            await app.store.commit([Unit(f"replay-{number}", state=state)])
            for claim in saved_claims(run, app.clock.now_ms()):
                done.steps += 1
                if (trouble := await check.check(claim)) is not None:
                    done.troubles.append(trouble)
    return done


def _in_a_loop(make: Callable[[], Any]) -> Any:
    """On a thread of its own: a test may have a loop running already."""
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
