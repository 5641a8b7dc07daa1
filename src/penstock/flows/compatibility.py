"""Preflight check: are the open steps of a run compatible with the loaded code?"""

from __future__ import annotations

import asyncio
import random

from ..context.blobs import BlobView
from ..core.errors import PayloadError, UnknownFlow, UnknownStep, VersionMismatch
from ..core.outage_retry import OutageRetry
from ..durable.session import DEFAULT_MAX_CALLS
from ..ports.runner import Runner
from ..ports.unit import Claim
from ..worker.attempt import read_input
from ..worker.channel import AttemptServices
from ..worker.engines import PINNED, PreflightProblem
from ..worker.replay_check import Difference, ReplayCheck
from .engine import FlowEngine
from .run_record import RunRecord
from .run_record import decode as decode_record
from .units import StepOptions, read_options
from .version_policy import explain_mismatch


class PreflightChecker:
    """Replays recorded steps against the loaded code. Handler code outside `ctx.run` is executed."""

    def __init__(self, engine: FlowEngine, runner: Runner) -> None:
        self._engine = engine
        self._registry = engine.runtime.registry
        self._state = engine.runtime.store
        self._runner = runner
        self._clock = engine.runtime.clock

    async def check(self, claim: Claim) -> list[PreflightProblem]:
        """Return what is wrong with a step: nothing if the code agrees with everything recorded of it."""
        assert claim.run is not None
        assert claim.record is not None
        record, options = decode_record(claim.record, claim.run), read_options(claim)
        mismatch = self._check_definition(claim, record, options)
        found = [mismatch] if mismatch is not None else await self._replay(claim)
        return [PreflightProblem(claim.run, record.flow, options.step, options.n, *one) for one in found]

    def _check_definition(self, claim: Claim, record: RunRecord, options: StepOptions) -> Difference | None:
        flow = self._registry().flows.get(record.flow)
        if flow is None:
            return Difference(UnknownFlow.code, f"flow {record.flow!r} no longer exists")
        mismatch = explain_mismatch(str(claim.run), record, flow)
        if mismatch is not None:
            return Difference(PINNED if flow.definition.on_change == "pin" else VersionMismatch.code, mismatch)
        step = flow.steps.get(options.step)
        if step is None:
            return Difference(UnknownStep.code, f"flow {record.flow!r} no longer has a step {options.step!r}")
        try:
            step.handler.check_input(read_input(claim))
        except PayloadError as problem:
            return Difference(problem.code, str(problem))
        return None

    async def _replay(self, claim: Claim) -> list[Difference]:
        if not claim.memos:
            return []  # nothing is recorded that the code could disagree with
        runtime = self._engine.runtime
        services = AttemptServices(
            store=runtime.store,
            committer=runtime.committer,
            clock=runtime.clock,
            new_unit_id=runtime.new_unit_id,
            runner=self._runner,
            rng=random.Random(),
            max_crashes=claim.crashes,
            max_calls=DEFAULT_MAX_CALLS,
            loop=asyncio.get_running_loop(),
            reads=OutageRetry("preflight"),
            blobs=runtime.blobs or BlobView(None),
        )
        return await ReplayCheck(await self._engine.open(claim), services).find_differences()
