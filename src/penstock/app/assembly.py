"""The parts of an open App: its engines, its services and its facets. Each is made when it is first used.

A part is imported with what it needs, so that a short program, such as a command, imports little more than it uses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..dags.engine import DagEngine
    from ..entities.engine import EntityEngine
    from ..flows.delivery import DeliveryEngine
    from ..flows.delivery_preview import DeliveryPreview
    from ..flows.engine import FlowEngine
    from ..flows.start_on import StartOnWaits
    from ..jobs.engine import JobEngine
    from ..jobs.launcher import Launcher
    from ..worker.child_runs import ChildRuns
    from ..worker.engines import Engines, RunEngine
    from .advice import Advice
    from .alert_service import AlertService
    from .alerts import Alerts
    from .app import App
    from .blobs import Blobs
    from .dags import Dags
    from .dead_letters import DeadLetters
    from .entities import Entities
    from .events import Events
    from .jobs import Jobs
    from .outbox import Outbox
    from .queues import Queues
    from .run_reader import RunReader
    from .runs import Runs
    from .schedule_service import ScheduleService
    from .schedules import Schedules
    from .snapshots import Snapshots
    from .state import AppState
    from .tokens import Tokens
    from .transactions import Transactions
    from .waits import Waits
    from .webhooks import Webhooks
    from .workers import Workers


# Engines


def make_launcher(app: App) -> Launcher:
    from ..jobs.launcher import Launcher

    find = app._find_definition
    return Launcher(app._runtime, app._children, find, app._advice.warn_about_queue, app.settings.max_depth)


def make_children(app: App) -> ChildRuns:
    from ..worker.child_runs import ChildRuns

    return ChildRuns(app._runtime, lambda: app._engines)


def make_advice(app: App) -> Advice:
    from .advice import Advice

    return Advice(app._runtime)


def make_engines(app: App) -> Engines:
    from ..ports.unit import DAG, DELIVERIES, ENTITY, FLOW
    from ..worker.engines import Engines

    # Those of the application are made at once: their kinds are not known before.
    more = [make(app._runtime, app._launcher) for make in app._engine_factories]
    own: dict[str, Callable[[], RunEngine]] = {
        FLOW: lambda: app._engine,
        DAG: lambda: app._dag_engine,
        ENTITY: lambda: app._entity_engine,
    }
    return Engines(more, own, partial(make_job_engine, app), {DELIVERIES: partial(make_delivery_engine, app)})


def make_flow_engine(app: App) -> FlowEngine:
    from ..flows.engine import FlowEngine

    return FlowEngine(app._runtime, app._launcher)


def make_job_engine(app: App) -> JobEngine:
    from ..jobs.engine import JobEngine

    return JobEngine(app._runtime, app._launcher)


def make_dag_engine(app: App) -> DagEngine:
    from ..dags.engine import DagEngine

    return DagEngine(app._runtime, app._launcher, app.settings.http_allow)


def make_entity_engine(app: App) -> EntityEngine:
    from ..entities.engine import EntityEngine

    return EntityEngine(app._runtime, app._launcher)


def make_delivery_engine(app: App) -> DeliveryEngine:
    from ..flows.delivery import DeliveryEngine
    from .delivery_targets import DeliveryTargets

    to = DeliveryTargets(app)
    acts = (to.start_flow, to.emit_to_run, app._children, to.emit_to_entity, to.send_alert)
    return DeliveryEngine(app._runtime, app._engine, *acts)


def make_delivery_preview(app: App) -> DeliveryPreview:
    from ..flows.delivery_preview import DeliveryPreview
    from .delivery_targets import DeliveryTargets

    return DeliveryPreview(app._runtime, DeliveryTargets(app).start_flow, lambda: app.registry.flows)


# Services


def make_transactions(app: App) -> Transactions:
    from .transactions import Transactions, Writers

    return Transactions(app._runtime, partial(Writers, app))


def make_snapshots(app: App) -> Snapshots:
    from .snapshots import Snapshots

    return Snapshots(app.store, app.store.clock)


def make_run_reader(app: App) -> RunReader:
    from .run_reader import RunReader

    return RunReader(app)


def make_schedule_service(app: App) -> ScheduleService:
    from .schedule_service import ScheduleService

    direct = app._transactions.direct
    return ScheduleService(app._runtime, direct.commands, direct.jobs, lambda: app._dag_engine)


def make_start_on(app: App) -> StartOnWaits:
    from ..flows.start_on import StartOnWaits

    return StartOnWaits(app._runtime)


# Facets


def make_runs(app: App) -> Runs:
    from .runs import Runs

    return Runs(app)


def make_jobs(app: App) -> Jobs:
    from .jobs import Jobs

    return Jobs(app)


def make_queues(app: App) -> Queues:
    from .queues import Queues

    return Queues(app._runtime)


def make_dead_letters(app: App) -> DeadLetters:
    from .dead_letters import DeadLetters

    direct = app._transactions.direct
    return DeadLetters(app._runtime, direct.commands, lambda: direct.entities)


def make_schedules(app: App) -> Schedules:
    from .schedules import Schedules

    return Schedules(app, app._schedule_service)


def make_waits(app: App) -> Waits:
    from .waits import Waits

    return Waits(app._runtime, app._engine, app._children)


def make_events(app: App) -> Events:
    from .events import Events

    return Events(app)


def make_state(app: App) -> AppState:
    from .state import AppState

    return AppState(app._runtime)


def make_webhooks(app: App) -> Webhooks:
    from ..flows.webhook_commands import WebhookCommands
    from .webhooks import Webhooks

    commands = WebhookCommands(
        app._engine,
        app._transactions.direct.commands,
        app._committer,
        lambda: app._dag_engine,
        app._advice.check_same_input,
    )
    return Webhooks(app._runtime, commands)


def make_dags(app: App) -> Dags:
    from .dags import Dags

    return Dags(app)


def make_entities(app: App) -> Entities:
    from .entities import Entities

    return Entities(app)


def make_outbox(app: App) -> Outbox:
    from .outbox import Outbox

    return Outbox(app._committer, app.settings.namespace)


def make_tokens(app: App) -> Tokens:
    from .tokens import Tokens

    return Tokens(app._runtime)


def make_blobs(app: App) -> Blobs:
    from .blobs import Blobs

    return Blobs(app._blob_view)


def make_alerts(app: App) -> Alerts:
    from .alerts import Alerts

    return Alerts(app)


def make_workers(app: App) -> Workers:
    from .dag_files import register_dag_files
    from .workers import Workers

    def run_bridges() -> AbstractAsyncContextManager[None]:
        from .bridges import run_bridges

        return run_bridges(app, (*app._file_bridges, *app._entity_bridges))

    return Workers(
        app._runtime,
        app.open_claim,
        app._schedule_service,
        app._start_on,
        app.settings,
        app._bridges,
        run_bridges,
        app._make_runner,
        {"node": lambda: app._node.make_runner()},
        partial(register_dag_files, app),
        partial(make_alert_service, app),
        app._value_sweeper,
        is_closed=not app._is_open,  # asked for after closing: it must not wait for a store that does not come back
    )


def make_alert_service(app: App) -> AlertService | None:
    if not app.settings.alerts:
        return None
    from .alert_service import AlertService

    return AlertService(app.alerts, app.clock, app.settings.alert_interval, app._committer.outages)


WITH_LARGE_VALUES = frozenset(("runs", "jobs", "events", "waits", "dead_letters", "dags", "webhooks"))
PARTS: Mapping[str, Callable[[App], Any]] = {
    "_advice": make_advice,
    "_children": make_children,
    "_launcher": make_launcher,
    "_engines": make_engines,
    "_engine": make_flow_engine,
    "_dag_engine": make_dag_engine,
    "_entity_engine": make_entity_engine,
    "_delivery_preview": make_delivery_preview,
    "_transactions": make_transactions,
    "_snapshots": make_snapshots,
    "_run_reader": make_run_reader,
    "_schedule_service": make_schedule_service,
    "_start_on": make_start_on,
    "runs": make_runs,
    "jobs": make_jobs,
    "queues": make_queues,
    "dead_letters": make_dead_letters,
    "schedules": make_schedules,
    "waits": make_waits,
    "events": make_events,
    "state": make_state,
    "webhooks": make_webhooks,
    "dags": make_dags,
    "entities": make_entities,
    "outbox": make_outbox,
    "tokens": make_tokens,
    "blobs": make_blobs,
    "alerts": make_alerts,
    "workers": make_workers,
}
