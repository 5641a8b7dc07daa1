"""Commands from outside a run: start, emit, pause, resume, cancel, redrive. Each is one unit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ..commit.committer import CommitRequest
from ..commit.sink import CommandSink
from ..core.errors import PenstockError, RunError, UnknownRun
from ..core.ids import check_id
from ..core.payload import pack, unpack
from ..durable.wait_records import TRIGGER, build_trigger_event, decode_body
from ..handlers.registry import Flow
from ..handlers.trigger_table import encode as encode_table
from ..jobs.dead_letters import DeadLetter
from ..ports.store import JobRow, RunRow, WaitRow
from ..ports.unit import Committed, Conflict, NewEvent, Receipt, Refused, ScheduleMove, SettleWait, StateWrite, Unit
from . import run_record as records
from .decide import Decider, Decision, Emission
from .engine import FlowEngine, table_key
from .run_record import FAILED, RUNNING, RunRecord
from .units import StepOptions, decode_options


class FlowCommands:
    """What the application does to runs."""

    def __init__(self, engine: FlowEngine, sink: CommandSink) -> None:
        self._engine = engine
        self._sink = sink
        self._store = engine.runtime.store
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
        unit_id = engine.new_unit_id()

        def build(version: int, data: bytes | None) -> Unit | Receipt:
            if version:
                return Conflict(version, data)
            record = RunRecord(
                flow.name,
                correlation_id or run,
                engine.clock.now_ms(),
                priority=priority,
                table=pin,
                version=flow.definition.version,
                tags=tags or {},
            )
            decision = engine.decider(run, record, table).on_start(input, cause)
            assembler = engine.unit_builder(run, record, table)
            state = [StateWrite(table_key(pin), encode_table(table))] if pin and pin not in self._pinned else []
            return Unit(
                unit_id,
                run=assembler.run_write(decision, 0),
                events=assembler.events(decision),
                jobs=assembler.jobs(decision, delay_ms),
                state=state,
                schedule=move,
            )

        receipt = await self._sink.submit(CommitRequest(build, run=run))
        if isinstance(receipt, Conflict):
            if move is not None:
                # The slot's run exists, from before the schedule was made anew: go on to the next slot.
                await self._sink.submit(CommitRequest(lambda _v, _r: Unit(unit_id, schedule=move)))
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
        unit_id = self._engine.new_unit_id()
        row = await self._row(run)
        begun = records.decode(row.record)
        self._engine.check_event(begun.flow, kind, emission.data)
        table = await self._engine.table(begun)

        def build(version: int, data: bytes | None) -> Unit | Receipt:
            record = require_open(run, data, f"receive {kind!r}")
            decision = self._engine.decider(run, record, table).on_event(emission, f"emit-{unit_id}")
            assembler = self._engine.unit_builder(run, record, table)
            return Unit(
                unit_id,
                run=assembler.run_write(decision, version),
                events=assembler.events(decision),
                jobs=assembler.jobs(decision),
                once_key=f"{run}/{key}" if key is not None else None,
            )

        await self._sink.submit(CommitRequest(build, run=run, version=row.version, record=row.record))

    async def cancel(self, run: str, reason: str) -> bool:
        """Cancels a run for good, and the triggers it waits for; False when it had ended before."""
        while True:
            triggers = await self._pending_triggers(run)
            closes = [SettleWait(row.id, "cancelled") for row in triggers]
            said = [self._trigger_cancelled(row, reason) for row in triggers]
            receipt = await self._decide(run, lambda decider, _: decider.on_cancel(reason), closes, said)
            if not isinstance(receipt, Refused):
                return isinstance(receipt, Committed)
            # One of the triggers was fired or has expired meanwhile: it is not cancelled then.

    async def pause(self, run: str, reason: str) -> bool:
        """Hands out nothing more of a run; False when it was paused or had ended before."""
        return isinstance(
            await self._decide(run, lambda decider, record: None if record.paused else decider.on_pause(reason)),
            Committed,
        )

    async def resume(self, run: str, reason: str) -> bool:
        """Lets a paused run go on; False when it was not paused."""
        return isinstance(
            await self._decide(run, lambda decider, record: decider.on_resume(reason) if record.paused else None),
            Committed,
        )

    async def _decide(
        self,
        run: str,
        decide: Callable[[Decider, RunRecord], Decision | None],
        waits: Sequence[SettleWait] = (),
        events: Sequence[NewEvent] = (),
    ) -> Receipt:
        """Commits what is decided of an open run; a Conflict when it has ended, or there is nothing to decide."""
        unit_id = self._engine.new_unit_id()
        row = await self._row(run)
        table = await self._engine.table(records.decode(row.record))

        def build(version: int, data: bytes | None) -> Unit | Receipt:
            record = records.decode(data) if data is not None else None
            if record is None or record.closed:
                return Conflict(version, data)
            decision = decide(self._engine.decider(run, record, table), record)
            if decision is None:
                return Conflict(version, data)
            assembler = self._engine.unit_builder(run, record, table)
            said = [*events, *assembler.events(decision)]
            return Unit(unit_id, run=assembler.run_write(decision, version), events=said, waits=list(waits))

        return await self._sink.submit(CommitRequest(build, run=run, version=row.version, record=row.record))

    async def _pending_triggers(self, run: str) -> list[WaitRow]:
        found: list[WaitRow] = []
        after: str | None = None
        while rows := await self._store.waits(run=run, kind=TRIGGER, after=after):
            after = rows[-1].id
            found += rows
        return found

    def _trigger_cancelled(self, row: WaitRow, reason: str) -> NewEvent:
        bodies, body = self._engine.bodies, decode_body(row.body)
        return build_trigger_event(bodies, "trigger.cancelled", row.id, row.run, body, {"reason": reason})

    async def redrive(self, letter_job: JobRow, letter: DeadLetter, payload: bytes) -> str | None:
        """Puts a dead step back to work; None when someone else took the letter first."""
        assert letter.run is not None
        options = msgspec.convert(letter.options, StepOptions)
        options = msgspec.structs.replace(options, step=letter.step or letter.original_job_name, n=letter.n)
        return await self._requeue_step(
            letter.run, letter_job.id, letter.original_job_id, letter.queue, options, payload
        )

    async def retry_step(self, failed: JobRow) -> str | None:
        """Puts a step back to work that failed for good and left no dead letter, or whose letter is gone."""
        assert failed.run is not None
        return await self._requeue_step(
            failed.run, failed.id, failed.id, failed.queue, decode_options(failed.opts), failed.payload
        )

    async def _requeue_step(
        self, run: str, taken: str, job: str, queue: str, before: StepOptions, payload: bytes
    ) -> str | None:
        """Adds a step's job anew, with the memos of the one that failed. What it takes can be taken once."""
        step = before.step
        unit_id = self._engine.new_unit_id()
        row = await self._row(run)
        table = await self._engine.table(records.decode(row.record))
        options = msgspec.structs.replace(before, redriven=before.redriven + 1)
        scope = job.partition(".redrive-")[0]
        new_id = f"{scope}.redrive-{options.redriven}"

        def build(version: int, data: bytes | None) -> Unit | Receipt:
            record = records.decode(data) if data is not None else None
            if record is None or record.status not in (RUNNING, FAILED):
                state = "is gone" if record is None else f"is {record.status}"
                raise RunError(f"run {run!r} {state}, so its step {step!r} cannot be sent again: start a new run")
            decision = self._engine.decider(run, record, table).on_redrive(step, options.n, new_id)
            assembler = self._engine.unit_builder(run, record, table)
            job = assembler.job(new_id, step, queue, payload, options, record, taken, scope=scope)
            return Unit(
                unit_id,
                run=assembler.run_write(decision, version),
                events=assembler.events(decision),
                jobs=[job],
                removes=[taken],
            )

        receipt = await self._sink.submit(CommitRequest(build, run=run, version=row.version, record=row.record))
        return None if isinstance(receipt, Refused) else new_id

    async def _row(self, run: str) -> RunRow:
        row = await self._store.run(check_id(run, "run id"))
        if row is None:
            raise UnknownRun(f"there is no run {run!r} in this store: list them, or check the URL")
        return row


class RunClosed(RunError):
    """The run has ended; it takes no more events."""

    code = "run_closed"


def require_open(run: str, data: bytes | None, what: str) -> RunRecord:
    """The record of a run that is still open; raises if it is not."""
    record = records.decode(data) if data is not None else None
    if record is None:
        raise UnknownRun(f"there is no run {run!r} in this store")
    if record.closed:
        raise RunClosed(f"run {run!r} is {record.status} and cannot {what}")
    return record


def read_dead_letter(row: JobRow) -> DeadLetter:
    """The dead letter in a job of a dead-letter queue."""
    try:
        return msgspec.convert(unpack(row.payload), DeadLetter)
    except msgspec.ValidationError as problem:
        raise PenstockError(f"job {row.id!r} of queue {row.queue!r} is not a dead letter: {problem}") from None
