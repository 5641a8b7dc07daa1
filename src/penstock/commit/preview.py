"""Dry runs: what a command would write, and the guard that refuses it if its run has moved on since."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar

import msgspec

from ..core.errors import BadArgument, RunMoved
from ..core.text import shorten
from ..ports.store import Store
from ..ports.unit import DELIVER, DELIVERIES, Committed, NewWait, Receipt, Unit
from .committer import Build, CommitRequest

T = TypeVar("T")

MAX_VERSION = 2**63
NEW_DELIVERY = "delivery.new"  # the id of a delivery ends with the position that its event gets in the feed


class PreviewEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """An event that would be appended, redacted as streams are."""

    stream: str
    kind: str
    step: str | None = None
    data: Any = None


class PreviewJob(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job that would be added."""

    id: str
    queue: str
    name: str
    run: str | None = None


class PreviewWait(msgspec.Struct, frozen=True):
    """A wait that would change, and its new state."""

    id: str
    state: str


class Preview(msgspec.Struct, frozen=True, rename="camel"):
    """What a command would write. Pass it as `version=` to the real call, which is refused if the run has moved on."""

    run: str | None = None
    version: int | None = None  # of the run, when the preview was made; of a plain job, its attempt
    status: str | None = None  # of the run afterwards
    events: tuple[PreviewEvent, ...] = ()
    jobs: tuple[PreviewJob, ...] = ()
    waits: tuple[PreviewWait, ...] = ()
    removed_jobs: tuple[str, ...] = ()
    woken_jobs: tuple[str, ...] = ()
    cancelled_jobs: tuple[str, ...] = ()
    refused: dict[str, str] = {}  # of a redrive: what would not be sent, and why
    versions: dict[str, int] = {}  # of all runs that would be written
    job: str | None = None  # the plain job that the command is about
    starts: tuple[str, ...] = ()  # of an emit: the flows that the event would start
    copied: int = 0  # of a fork: events that would be copied; `events` has the new ones

    def __bool__(self) -> bool:
        """Whether the command would write anything."""
        jobs = self.jobs or self.removed_jobs or self.woken_jobs or self.cancelled_jobs
        return bool(self.events or self.copied or self.waits or jobs)


class _Body(msgspec.Struct):
    kind: str
    step: str | None = None
    data: Any = None
    meta: Any = None

    @property
    def is_copied(self) -> bool:
        """Whether a fork copies the event from another run."""
        return isinstance(self.meta, dict) and "copied" in self.meta


_decode_body = msgspec.json.Decoder(_Body).decode


class CommandPlan:
    """One call with `dry_run=` or `version=`: builds its units, and writes them only if it is no dry run."""

    def __init__(self, store: Store, versions: Mapping[str, int], is_dry_run: bool) -> None:
        self._store = store
        self._expected = dict(versions)  # of each run whose version the caller expects
        self.is_dry_run = is_dry_run
        self.units: list[Unit] = []
        self._seen: dict[str, int] = {}  # the version of each run before the call
        self._heads: dict[str, tuple[int, bytes]] = {}  # of runs that earlier units of the call would have changed
        self.starts: list[str] = []  # flows that its events would start
        self._deliveries: list[PreviewJob] = []

    def guard(self, run: str, build: Build) -> Build:
        """Return a build that raises RunMoved if the run has another version than expected."""

        def guarded(version: int, record: bytes | None) -> Unit | Receipt:
            if version != self._expected[run]:
                raise moved(run, self._expected[run], version)
            return build(version, record)

        return guarded

    def is_guarded(self, request: CommitRequest) -> bool:
        """Return whether a request writes a run whose version is expected."""
        return request.run in self._expected

    def committed(self, request: CommitRequest) -> None:
        """Expect the next version: a call may write its run several times."""
        if request.run is not None and request.run in self._expected:
            self._expected[request.run] += 1

    async def collect(self, request: CommitRequest) -> Receipt:
        """Build the request's unit and keep it."""
        version, record = request.version, request.record
        if request.run is not None:
            if request.run in self._heads:
                version, record = self._heads[request.run]
            elif record is None and (row := await self._store.run(request.run)) is not None:
                version, record = row.version, row.record  # it exists: the commit would answer with a conflict
        built = request.build(version, record)
        if not isinstance(built, Unit):
            return built
        self.units.append(built)
        if built.run is not None:
            self._seen.setdefault(built.run.id, built.run.expect)
            self._heads[built.run.id] = (built.run.expect + 1, built.run.record)
        return Committed([(0, 0)] * len(built.events), [True] * len(built.jobs))

    async def add_deliveries(self) -> None:
        """Add the jobs that the store adds by itself: those that deliver events to pending waits for their kind."""
        for kind in {one.kind: None for unit in self.units for one in unit.events if one.kind is not None}:
            if await self._store.waits_for_topic(kind, None, limit=1):
                self._deliveries.append(PreviewJob(NEW_DELIVERY, DELIVERIES, DELIVER))

    def preview(self, run: str | None, version: int | None) -> Preview:
        """Return what was collected."""
        units = self.units
        added = [PreviewJob(job.id, job.queue, job.name, job.run) for unit in units for job in unit.jobs]
        bodies = [(one.stream, _decode_body(one.body)) for unit in units for one in unit.events]
        events = [(stream, body) for stream, body in bodies if not body.is_copied]
        written = [unit.run for unit in units if unit.run is not None]
        return Preview(
            run,
            version,
            next((one.status for one in reversed(written) if one.id == run), written[-1].status if written else None),
            tuple(PreviewEvent(stream, body.kind, body.step, body.data) for stream, body in events),
            (*added, *self._deliveries),
            tuple(
                PreviewWait(wait.id, "pending" if isinstance(wait, NewWait) else wait.state)
                for unit in units
                for wait in unit.waits
            ),
            tuple(id for unit in units for id in unit.removes),
            tuple(id for unit in units for id in unit.wakes),
            tuple(one.id for unit in units for one in unit.cancels),
            versions=self._seen,
            starts=tuple(self.starts),
            copied=len(bodies) - len(events),
        )


PLAN: ContextVar[CommandPlan | None] = ContextVar("penstock_plan", default=None)


def is_dry_run() -> bool:
    """Return whether the present call is a dry run: then nothing may be written past the sink."""
    plan = PLAN.get()
    return plan is not None and plan.is_dry_run


def note(unit: Unit) -> None:
    """Add to a dry run what the call would write past the sink."""
    plan = PLAN.get()
    assert plan is not None
    plan.units.append(unit)


async def run_planned(
    store: Store,
    run: str | None,
    dry_run: bool,
    version: int | Preview | None,
    act: Callable[[], Awaitable[T]],
    more: Callable[[CommandPlan], Awaitable[None]] | None = None,
) -> tuple[T, Preview | None]:
    """Call a command. In a dry run it writes nothing, and its preview is returned with its result. `more` adds to the
    preview what the commit would lead to."""
    expected = read_version(version, run)
    if expected is None and not dry_run:
        return await act(), None
    if expected is not None and run is None:
        raise BadArgument(f"version={expected} needs a call that changes exactly one run")
    row = await store.run(run) if run is not None else None
    current = row.version if row is not None else None
    if expected is not None and current is not None and current != expected:
        raise moved(run, expected, current)
    versions = {run: expected} if run is not None and expected is not None else {}
    plan = CommandPlan(store, versions, dry_run)
    result = await _call_planned(plan, act, more)
    return result, plan.preview(run, current) if dry_run else None


async def run_bulk_planned(
    store: Store, dry_run: bool, version: Preview | None, act: Callable[[], Awaitable[T]]
) -> tuple[T, Preview | None]:
    """Call a command that writes several runs, each guarded by its version in the preview."""
    if version is not None and not isinstance(version, Preview):
        raise BadArgument(f"version must be the Preview of a dry run of the same call, got {shorten(version)}")
    if version is None and not dry_run:
        return await act(), None
    plan = CommandPlan(store, version.versions if version is not None else {}, dry_run)
    result = await _call_planned(plan, act)
    return result, plan.preview(None, None) if dry_run else None


async def _call_planned(
    plan: CommandPlan, act: Callable[[], Awaitable[T]], more: Callable[[CommandPlan], Awaitable[None]] | None = None
) -> T:
    token = PLAN.set(plan)
    try:
        result = await act()
        if plan.is_dry_run:
            await plan.add_deliveries()
            if more is not None:
                await more(plan)
        return result
    finally:
        PLAN.reset(token)


def read_version(version: int | Preview | None, about: str | None) -> int | None:
    """Return the version that the caller expects: a number, or that of a preview of the same run or job."""
    expected = version.version if isinstance(version, Preview) else version
    if isinstance(version, Preview) and (found := version.run or version.job) != about:
        raise BadArgument(f"version= is a Preview of another call ({found!r}); make a dry run of {about!r}")
    if expected is not None and (
        isinstance(expected, bool) or not isinstance(expected, int) or not 0 <= expected < MAX_VERSION
    ):
        raise BadArgument(f"version must be the version of a run, or a Preview, got {shorten(version)}")
    return expected


def moved(run: str | None, expected: int, current: int) -> RunMoved:
    """Build the error of a command whose run has moved on."""
    return RunMoved(
        f"run {run!r} has moved on: its version is {current}, not {expected}; look at it again, and repeat the dry run"
    )


def describe_preview(preview: Preview) -> Sequence[str]:
    """Return a preview as lines for people."""
    lines = [f"copy     {preview.copied} events"] if preview.copied else []
    lines += [f"event    {one.kind}{f'  {one.step}' if one.step else ''}  ({one.stream})" for one in preview.events]
    lines += [f"job      {one.id}  added to queue {one.queue}" for one in preview.jobs]
    lines += [f"wait     {one.id}  {one.state}" for one in preview.waits]
    lines += [f"job      {id}  removed" for id in preview.removed_jobs]
    lines += [f"job      {id}  made due" for id in preview.woken_jobs]
    lines += [f"job      {id}  cancelled" for id in preview.cancelled_jobs]
    lines += [f"flow     {name}  started" for name in preview.starts]
    lines += [f"refused  {id}  {why}" for id, why in preview.refused.items()]
    return lines
