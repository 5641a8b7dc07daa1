"""Which events of a live stream a client wants: by kind, step, flow, stream, tag and job."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence

from ..core.event_tags import check_event_tags, has_tags
from ..ports.store import Store
from .shared_reader import LiveEvent

MAX_FLOW_NAMES = 10_000


class FlowNames:
    """The flows of runs, as events need them: an event names its run. A run never changes its flow."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._names: OrderedDict[str, str] = OrderedDict()

    async def find(self, run: str) -> str | None:
        """Return the name of a run's flow, or None if there is no such run."""
        if run not in self._names:
            if (row := await self._store.run(run)) is None:
                return None
            self._names[run] = row.flow
            if len(self._names) > MAX_FLOW_NAMES:
                self._names.popitem(last=False)
        return self._names[run]


class EventFilter:
    """Selects events. An empty collection selects all."""

    def __init__(
        self,
        names: FlowNames,
        *,
        kinds: Collection[str] = (),
        steps: Collection[str] = (),
        flows: Collection[str] = (),
        streams: Collection[str] = (),
        tags: Collection[str] = (),
        job: str | None = None,
        hidden: str | None = None,
    ) -> None:
        self._names = names
        self._kinds, self._steps, self._streams = frozenset(kinds), frozenset(steps), frozenset(streams)
        self._flows = frozenset(flows)  # names of flows, or ids of runs
        self._tags = check_event_tags(tags)
        self._job = job
        self._hidden = hidden  # a stream that this caller may not read
        self.selects_all = not (kinds or steps or flows or streams or tags or hidden) and job is None

    async def select(self, batch: Sequence[LiveEvent]) -> Sequence[LiveEvent]:
        """Return the events of a batch that the client wants."""
        if self.selects_all:
            return batch
        found = [live for live in batch if self._fits(live)]
        return [live for live in found if await self._has_flow(live)] if self._flows else found

    def _fits(self, live: LiveEvent) -> bool:
        event = live.event
        return (
            (not self._kinds or event.kind in self._kinds)
            and (not self._steps or event.step in self._steps)
            and (not self._streams or live.stream in self._streams)
            and (not self._tags or has_tags(event, self._tags))
            and (self._job is None or event.subject == self._job)
            and live.stream != self._hidden
        )

    async def _has_flow(self, live: LiveEvent) -> bool:
        run = live.event.flow
        return run is not None and (run in self._flows or await self._names.find(run) in self._flows)
