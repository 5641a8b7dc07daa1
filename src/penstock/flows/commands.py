"""Commands from outside a run: start, emit, cancel, redrive. Each is one unit."""

from __future__ import annotations

from typing import Any

import msgspec

from ..core.errors import PenstockError, RunError, UnknownRun
from ..core.ids import check_id
from ..core.payload import pack, unpack
from ..jobs.committer import Committer, Intent
from ..jobs.dead_letters import DeadLetter
from ..ports.store import JobRow, Runs
from ..ports.unit import Committed, Conflict, Receipt, Refused, ScheduleMove, StateWrite, Unit
from . import record as records
from .assemble import StepOptions
from .decide import Emission
from .engine import FlowEngine, table_key
from .record import FAILED, RUNNING, RunRecord
from .registry import Flow
from .table import encode as encode_table


class Commands:
    """What the application does to runs."""

    def __init__(self, engine: FlowEngine, committer: Committer, runs: Runs) -> None:
        self._engine = engine
        self._committer = committer
        self._runs = runs
        self._pinned: set[str] = set()

    async def start(
        self,
        flow: Flow,
        run: str,
        input: bytes,
        *,
        correlation_id: str | None = None,
        priority: int = 0,
        delay_ms: int = 0,
        tags: dict[str, str] | None = None,
        cause: str = "start",
        move: ScheduleMove | None = None,
    ) -> bool:
        """Starts a run; False when a run of that id exists already, which is how a key makes starting idempotent."""
        engine, table = self._engine, flow.table
        pin = table.fingerprint if flow.definition.version is not None else None
        unit_id = engine.unit_id()

        def build(version: int, data: bytes | None) -> Unit | Receipt:
            if version:
                return Conflict(version, data)
            record = RunRecord(
                flow.name, correlation_id or run, engine.clock.now_ms(), priority=priority, table=pin, tags=tags or {}
            )
            decision = engine.decider(run, record, table).begin(input, cause)
            assembler = engine.assembler(run, record, table)
            state = [StateWrite(table_key(pin), encode_table(table))] if pin and pin not in self._pinned else []
            return Unit(
                unit_id,
                run=assembler.run_write(decision, 0),
                events=assembler.events(decision),
                jobs=assembler.jobs(decision, delay_ms),
                state=state,
                schedule=move,
            )

        receipt = await self._committer.submit(Intent(build, run=run))
        if isinstance(receipt, Conflict):
            if move is not None:
                # The slot's run exists, from before the schedule was made anew: go on to the next slot.
                await self._committer.submit(Intent(lambda _v, _r: Unit(unit_id, schedule=move)))
            self._check_same_flow(flow, run, receipt.record)
            return False
        if isinstance(receipt, Refused):
            return False  # another scheduler fired this slot
        if pin is not None:
            self._pinned.add(pin)
        return not (isinstance(receipt, Committed) and receipt.repeated)

    def _check_same_flow(self, flow: Flow, run: str, data: bytes | None) -> None:
        if data is not None and (other := records.decode(data).flow) != flow.name:
            raise RunError(f"run {run!r} exists and is of flow {other!r}, not {flow.name!r}: use another key")

    async def emit(self, run: str, kind: str, data: Any, *, key: str | None = None) -> None:
        """Records an event on a run from outside and starts what listens to it."""
        emission = Emission(kind, pack(data, f"the data of {kind}"))
        unit_id = self._engine.unit_id()
        row = await self._row(run)
        begun = records.decode(row.record)
        self._engine.check_event(begun.flow, kind, emission.data)
        table = await self._engine.table(begun)

        def build(version: int, data: bytes | None) -> Unit | Receipt:
            record = _open(run, data, f"receive {kind!r}")
            decision = self._engine.decider(run, record, table).emitted(emission, f"emit-{unit_id}")
            assembler = self._engine.assembler(run, record, table)
            return Unit(
                unit_id,
                run=assembler.run_write(decision, version),
                events=assembler.events(decision),
                jobs=assembler.jobs(decision),
                once=f"{run}/{key}" if key is not None else None,
            )

        await self._committer.submit(Intent(build, run=run, version=row.version, record=row.record))

    async def cancel(self, run: str, reason: str) -> bool:
        """Cancels a run for good; False when it had ended before."""
        unit_id = self._engine.unit_id()
        row = await self._row(run)
        table = await self._engine.table(records.decode(row.record))

        def build(version: int, data: bytes | None) -> Unit | Receipt:
            record = records.decode(data) if data is not None else None
            if record is None or record.closed:
                return Conflict(version, data)
            decision = self._engine.decider(run, record, table).cancelled(reason)
            assembler = self._engine.assembler(run, record, table)
            return Unit(unit_id, run=assembler.run_write(decision, version), events=assembler.events(decision))

        receipt = await self._committer.submit(Intent(build, run=run, version=row.version, record=row.record))
        return isinstance(receipt, Committed)

    async def redrive(self, letter_job: JobRow, letter: DeadLetter, payload: bytes) -> str | None:
        """Puts a dead step back to work; None when someone else took the letter first."""
        assert letter.run is not None
        run, step = letter.run, letter.step or letter.original_job_name
        unit_id = self._engine.unit_id()
        row = await self._row(run)
        table = await self._engine.table(records.decode(row.record))
        before = msgspec.convert(letter.options, StepOptions)
        options = msgspec.structs.replace(before, redriven=before.redriven + 1)
        scope = letter.original_job_id.partition(".redrive-")[0]
        new_id = f"{scope}.redrive-{options.redriven}"

        def build(version: int, data: bytes | None) -> Unit | Receipt:
            record = records.decode(data) if data is not None else None
            if record is None or record.status not in (RUNNING, FAILED):
                state = "is gone" if record is None else f"is {record.status}"
                raise RunError(f"run {run!r} {state}, so its step {step!r} cannot be sent again: start a new run")
            decision = self._engine.decider(run, record, table).redriven(step, letter.n, new_id)
            assembler = self._engine.assembler(run, record, table)
            job = assembler.job(new_id, step, letter.queue, payload, options, record, letter_job.id, scope=scope)
            return Unit(
                unit_id,
                run=assembler.run_write(decision, version),
                events=assembler.events(decision),
                jobs=[job],
                takes=[letter_job.id],
            )

        receipt = await self._committer.submit(Intent(build, run=run, version=row.version, record=row.record))
        return None if isinstance(receipt, Refused) else new_id

    async def _row(self, run: str) -> Any:
        row = await self._runs.run(check_id(run, "run id"))
        if row is None:
            raise UnknownRun(f"there is no run {run!r} in this store: list them, or check the URL")
        return row


class RunClosed(RunError):
    """The run has ended; it takes no more events."""

    code = "run_closed"


def _open(run: str, data: bytes | None, what: str) -> RunRecord:
    record = records.decode(data) if data is not None else None
    if record is None:
        raise UnknownRun(f"there is no run {run!r} in this store")
    if record.closed:
        raise RunClosed(f"run {run!r} is {record.status} and cannot {what}")
    return record


def read_letter(row: JobRow) -> DeadLetter:
    """The dead letter in a job of a dead-letter queue."""
    try:
        return msgspec.convert(unpack(row.payload), DeadLetter)
    except msgspec.ValidationError as problem:
        raise PenstockError(f"job {row.id!r} of queue {row.queue!r} is not a dead letter: {problem}") from None
