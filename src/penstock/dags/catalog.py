"""The catalog: definitions of dags in the store, each version kept, so that workers without the file can run them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from ..commit.committer import CommitRequest
from ..commit.runtime import Runtime
from ..core.clock import to_iso
from ..core.errors import UnknownDag
from ..core.ids import check_name, digest
from ..core.near_match import did_you_mean
from ..core.stored import read_stored
from ..core.text import shorten
from ..ports.store import StateRow
from ..ports.unit import Refused, StateWrite, Unit
from .definition import Dag
from .plan import Plan

HEADS, VERSIONS = "dag/", "dag-version/"
PAGE = 200
_RESTORE = "restore it from a backup, or register the dag again"


class DagVersion(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One stored version of a dag.

    Attributes:
        version: Its number, from 1.
        registered_at: When it was registered.
        fingerprint: A hash of the definition.
        notes: What has changed, for people.
    """

    version: int
    registered_at: str
    fingerprint: str
    notes: str = ""


class DagSummary(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A dag as lists show it.

    Attributes:
        id: Its name.
        name: Its title.
        is_active: Whether runs of it can be started.
        versions: Its versions, oldest first.
    """

    id: str
    name: str = ""
    is_active: bool = True
    versions: tuple[DagVersion, ...] = ()

    @property
    def latest(self) -> int:
        """The newest version: runs start with it."""
        return self.versions[-1].version


class StoredDag(msgspec.Struct, frozen=True, omit_defaults=True):
    """A version as it is stored: the definition, and the queues of its executors where it was registered."""

    dag: Dag
    queues: dict[str, str] = {}


_encode = msgspec.json.Encoder().encode
_decode_summary = msgspec.json.Decoder(DagSummary).decode
_decode_stored = msgspec.json.Decoder(StoredDag).decode


class Catalog:
    """Reads and writes definitions of dags. Plans are cached: a version never changes."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._store = runtime.store
        self._plans: dict[tuple[str, int], Plan] = {}
        self.known: dict[str, DagSummary] = {}  # as this process has seen them last

    async def register(self, dag: Dag, queues: Mapping[str, str], notes: str) -> DagSummary:
        """Store a definition as the next version, unless it is that of the newest one. It is active then."""
        fingerprint = fingerprint_dag(dag)
        while True:
            row = await self._store.state(HEADS + dag.id)
            before = self._read(row) if row is not None else DagSummary(dag.id)
            versions, stored = before.versions, _encode(StoredDag(dag, dict(queues)))
            is_newest = bool(versions) and versions[-1].fingerprint == fingerprint
            # An import may have brought the list of the versions, and not this one.
            is_stored = is_newest and await self._store.state(version_key(dag.id, before.latest)) is not None
            if is_stored and before.is_active:
                return self._remember(before)
            if not is_newest:
                number, at = await self._next_version(before), to_iso(self._runtime.clock.now_ms())
                versions = (*versions, DagVersion(number, at, fingerprint, notes))
            key = version_key(dag.id, versions[-1].version)
            state = [] if is_stored else [StateWrite(key, stored, 0)]  # a version never changes
            after = DagSummary(dag.id, dag.name, True, versions)
            if await self._write(after, row, state):
                self._plans[dag.id, after.latest] = Plan(dag, after.latest, queues)
                return self._remember(after)

    async def _next_version(self, summary: DagSummary) -> int:
        """Return a number that no version has, also none that an import has brought with a run."""
        number = summary.versions[-1].version + 1 if summary.versions else 1
        while await self._store.state(version_key(summary.id, number)) is not None:
            number += 1
        return number

    async def set_active(self, id: str, is_active: bool) -> bool:
        """Activate or deactivate a dag. Return False if it is so already."""
        while True:
            row = await self._store.state(HEADS + check_name(id, "dag id"))
            if row is None:
                raise await self.unknown(id)
            before = self._read(row)
            if before.is_active == is_active:
                return False
            after = msgspec.structs.replace(before, is_active=is_active)
            if await self._write(after, row, []):
                self._remember(after)
                return True

    async def find(self, id: str) -> DagSummary | None:
        """Return a dag as it is stored now, or None."""
        row = await self._store.state(HEADS + check_name(id, "dag id"))
        return self._remember(self._read(row)) if row is not None else None

    async def get(self, id: str) -> DagSummary:
        """Return a dag as it is stored now. Raise UnknownDag if there is none."""
        found = await self.find(id)
        if found is None:
            raise await self.unknown(id)
        return found

    async def list(self) -> list[DagSummary]:
        """Return all dags, by id."""
        found: list[DagSummary] = []
        after: str | None = None
        while rows := await self._store.states(HEADS, after=after, limit=PAGE):
            after = rows[-1].key
            found += [self._remember(self._read(row)) for row in rows]
        return found

    async def plan(self, id: str, version: int) -> Plan:
        """Return the plan of a version. Raise UnknownDag if it is not stored."""
        plan = self._plans.get((id, version))
        if plan is None:
            row = await self._store.state(version_key(id, version))
            if row is None:
                raise UnknownDag(f"version {version} of dag {id!r} is not stored; register it again")
            what = f"version {version} of dag {id!r}"
            plan = read_stored(lambda data: _read_plan(data, version), row.value, what, _RESTORE)
            self._plans[id, version] = plan
        return plan

    def node_ids(self) -> set[str]:
        """Return the ids of the nodes of every version that this process has loaded."""
        return {node.id for plan in self._plans.values() for node in plan.nodes}

    def find_plan(self, id: str, version: int) -> Plan | None:
        """Return a plan that this process has loaded, or None."""
        return self._plans.get((id, version))

    async def unknown(self, id: str) -> UnknownDag:
        """Build the error for a dag that is not registered, with the nearest id."""
        names = [one.id for one in await self.list()]
        hint = did_you_mean(id, names) or "register it: `penstock dags register FILE`, or app.dags.register"
        return UnknownDag(f"no dag named {shorten(id)}; {hint}")

    async def _write(self, after: DagSummary, row: StateRow | None, state: Sequence[StateWrite]) -> bool:
        expect = row.version if row is not None else 0
        head = StateWrite(HEADS + after.id, _encode(after), expect)
        unit = Unit(self._runtime.new_unit_id(), state=[head, *state])
        receipt = await self._runtime.committer.submit(CommitRequest(lambda _v, _r: unit))
        return not isinstance(receipt, Refused)  # else another process wrote first

    def _read(self, row: StateRow) -> DagSummary:
        return read_stored(_decode_summary, row.value, f"the dag {row.key.removeprefix(HEADS)!r}", _RESTORE)

    def _remember(self, summary: DagSummary) -> DagSummary:
        self.known[summary.id] = summary
        return summary


def _read_plan(data: bytes, version: int) -> Plan:
    """Return the plan of a stored version. Raise msgspec.ValidationError if its nodes do not fit together."""
    stored = _decode_stored(data)
    try:
        return Plan(stored.dag, version, stored.queues)
    except KeyError as missing:
        raise msgspec.ValidationError(f"it has no node {missing}") from None


def fingerprint_dag(dag: Dag) -> str:
    """Return a hash of a definition: the same for the same one."""
    return digest(_encode(dag))


def head_key(id: str) -> str:
    """Return the state key of a dag's list of versions."""
    return HEADS + id


def version_key(id: str, version: int) -> str:
    """Return the state key of a version."""
    return f"{VERSIONS}{id}/{version}"
