"""Keeps the schedules, webhooks and event waits of dags as their newest versions declare them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..core.errors import DagInvalid, UnknownDag, UnknownWebhook, UnreadableRecord
from ..dags.catalog import DagSummary
from ..dags.definition import Dag
from ..dags.triggers import ScheduleTrigger, schedule_id, schedule_origin
from ..flows.start_on import build_start_wait
from ..schedules.spec import Target, decode_spec

if TYPE_CHECKING:
    from .app import App


class DagTriggers:
    """Stores and removes the triggers of dags. Each call leaves the same behind if it is repeated."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def check(self, dag: Dag) -> None:
        """Raise DagInvalid if a path is that of another flow or dag."""
        if problems := await self.find_problems(dag):
            raise DagInvalid(problems)

    async def find_problems(self, dag: Dag) -> list[str]:
        """Return the webhooks whose path is that of another flow or dag."""
        problems = []
        for n, trigger in enumerate(dag.triggers):
            if trigger.webhook is None:
                continue
            try:
                found = await self._app.webhooks.get(trigger.webhook.path)
            except UnknownWebhook:
                continue
            if found.flow != dag.id or found.declared:
                owner = f"flow {found.flow!r}" if found.flow is not None else f"event {found.event!r}"
                problems.append(f"triggers[{n}].webhook: the path {found.path!r} belongs to {owner}")
        return problems

    async def store(self, summary: DagSummary, dag: Dag) -> None:
        """Store the triggers of an active dag, and remove those of its earlier versions."""
        schedules = [one.schedule for one in dag.triggers if one.schedule is not None]
        webhooks = {one.webhook.path: one.webhook for one in dag.triggers if one.webhook is not None}
        waits = [build_start_wait(dag.id, one.event.kind, one.event.match) for one in dag.triggers if one.event]
        await self._store_schedules(dag.id, schedules)
        for one in webhooks.values():
            await self._app.webhooks.register(one.path, flow=dag.id, method=one.method)
        await self._remove_webhooks(summary, webhooks)
        await self._app._start_on.replace({wait.id: wait for wait in waits}, {dag.id})

    async def remove(self, summary: DagSummary) -> None:
        """Remove all triggers of a dag."""
        await self._store_schedules(summary.id, [])
        await self._remove_webhooks(summary, ())
        await self._app._start_on.replace({}, {summary.id})

    async def _store_schedules(self, dag: str, wanted: list[ScheduleTrigger]) -> None:
        ids = set()
        for n, one in enumerate(wanted):
            ids.add(id := schedule_id(dag, n))
            await self._app._schedule_service.upsert(id, one.make_spec(dag), Target(flow=dag, input=one.input))
        for row in await self._app.store.schedules():
            try:
                is_stale = row.id not in ids and decode_spec(row).origin == schedule_origin(dag)
            except UnreadableRecord:
                continue
            if is_stale:
                await self._app.store.remove_schedule(row.id)

    async def _remove_webhooks(self, summary: DagSummary, keep: Iterable[str]) -> None:
        known: set[str] = set()
        for version in summary.versions:
            try:
                dag = (await self._app._dag_engine.catalog.plan(summary.id, version.version)).dag
            except (UnknownDag, UnreadableRecord):
                continue
            known |= {one.webhook.path for one in dag.triggers if one.webhook is not None}
        for path in sorted(known - set(keep)):
            try:
                found = await self._app.webhooks.get(path)
            except UnknownWebhook:
                continue
            if found.flow == summary.id and not found.declared:
                await self._app.webhooks.remove(path)
