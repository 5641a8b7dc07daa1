"""Preflight: check the open runs of a store against the loaded code."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec

from ..core.errors import UnknownFlow
from ..core.near_match import did_you_mean
from ..flows.run_record import OPEN as OPEN_RUNS
from ..ports.runner import Runner
from ..ports.store import JobRow, RunRow
from ..ports.unit import Claim, JobState
from ..worker.engines import PreflightProblem
from ..worker.replay_check import ADDED
from .arguments import check_list
from .run_actions import jobs_of

if TYPE_CHECKING:
    from .app import App

OPEN = (JobState.WAITING, JobState.DELAYED, JobState.ACTIVE, JobState.SUSPENDED, JobState.HELD)


class PreflightReport(msgspec.Struct):
    """How many runs and steps a preflight check replayed, and the problems it found."""

    runs: int = 0
    steps: int = 0
    problems: list[PreflightProblem] = []
    files: list[str] = []  # why worker files, or handlers in them, are not loaded

    @property
    def is_ok(self) -> bool:
        """Whether every worker file is loaded and every open run can continue with it."""
        return not self.broken and not self.files

    @property
    def broken(self) -> list[PreflightProblem]:
        """The problems without accepted calls and without pinned runs, which other workers continue."""
        return [problem for problem in self.problems if problem.is_breaking]

    @property
    def broken_steps(self) -> int:
        """How many steps have a problem; a step may have several."""
        return len({(problem.run, problem.step, problem.n) for problem in self.broken})


async def check_runs(app: App, flow: str | None = None, accept: Sequence[str] = ()) -> PreflightReport:
    """Replay every open step of a store, or of one flow. Nothing is written; code outside `ctx.run` is executed."""
    accept = check_list(accept, "accept")
    report = PreflightReport(files=[str(problem) for problem in app.registry.problems])
    async with open_checker(app) as checker:
        for status in OPEN_RUNS:
            async for row in _rows(app, flow, status):
                report.runs += 1
                for claim in await _claims(app, row):
                    report.steps += 1
                    report.problems += [_accept(one, accept) for one in await checker.check(claim)]
    if not report.runs and flow is not None and flow not in app.registry.flows:
        hint = did_you_mean(flow, app.registry.flows) or "it has no open runs, and no worker file defines it"
        raise UnknownFlow(f"no flow named {flow!r}; {hint}")
    return report


def _accept(problem: PreflightProblem, names: Sequence[str]) -> PreflightProblem:
    """Mark a new call that has one of these names: of a durable call, or in an emit the kind of its event."""
    call = problem.call or ""
    own = (call, call.partition("#")[0], *re.findall(r"^emit \d+ \('(.*)'\)$", call))
    is_accepted = problem.code == ADDED and any(name in own for name in names)
    return msgspec.structs.replace(problem, is_accepted=True) if is_accepted else problem


class Checker:
    """Checks claims with the engines of an App."""

    def __init__(self, app: App, runner: Runner) -> None:
        self._engines = app._engines
        self._runner = runner

    async def check(self, claim: Claim) -> list[PreflightProblem]:
        """Return why the loaded code cannot continue a claim: nothing if it can."""
        return await self._engines.of_run_kind(claim.kind).check(claim, self._runner)


@asynccontextmanager
async def open_checker(app: App) -> AsyncIterator[Checker]:
    """Yield a checker that uses the code of an open App."""
    runner = app.workers._open_checking_runners(app._node.make_own_runner)
    try:
        yield Checker(app, runner)
    finally:
        await runner.close()


def build_claim(row: RunRow, job: JobRow, memos: dict[str, bytes], now: int) -> Claim:
    """Build the claim that a worker would get for a job, without claiming it."""
    return Claim(
        job.id, job.queue, job.name, job.payload, job.opts, job.scope, job.attempt + 1, "", job.failures, job.crashes,
        0, row.id, row.version, row.record, memos, now, row.kind,
    )  # fmt: skip


async def _rows(app: App, flow: str | None, status: str) -> AsyncIterator[RunRow]:
    before: str | None = None
    while page := await app.store.runs(flow=flow, statuses=[status], before=before, limit=200):
        before = page[-1].id
        for row in page:
            yield row


async def _claims(app: App, row: RunRow) -> list[Claim]:
    claims: list[Claim] = []
    for id in await jobs_of(app, row.id):
        job = await app.store.job(id)
        if job is not None and job.run == row.id and job.state in OPEN:
            claims.append(build_claim(row, job, await app.store.memos(job.scope), app.clock.now_ms()))
    return claims
