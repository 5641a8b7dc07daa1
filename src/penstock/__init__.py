"""Durable flows and jobs for Python: plain functions, one event stream a run, one commit an attempt."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .app import App, SyncApp
    from .app.run_handle import Run
    from .app.shared_connections import SharedConnections
    from .app.sync_facets import SyncRun
    from .context.context import Context
    from .context.sync_context import SyncContext
    from .core.errors import AwaitTimeout, ChildFailed, PenstockError, Permanent, RateLimited, Rejected, Retry
    from .core.events import Event
    from .core.retry import Backoff, RetryPolicy
    from .core.signatures import Signature, sign
    from .dags.builder import DagBuilder
    from .durable.child_runs import ChildFailure
    from .durable.declared_waits import Await
    from .entities.services import EntityService, FunctionService
    from .handlers.decorators import flow, job, step
    from .handlers.entities import entity, make_entity, on_event, on_status_changed
    from .handlers.entity_machine import States, Transition
    from .handlers.nodes import Fail, Next, Skip, node
    from .handlers.subscriptions import Subscription
    from .jobs.job_trees import Node

__version__ = "0.1.0"

__all__ = [
    "App",
    "Await",
    "AwaitTimeout",
    "Backoff",
    "ChildFailed",
    "ChildFailure",
    "Context",
    "DagBuilder",
    "EntityService",
    "Event",
    "Fail",
    "FunctionService",
    "Next",
    "Node",
    "PenstockError",
    "Permanent",
    "RateLimited",
    "Rejected",
    "Retry",
    "RetryPolicy",
    "Run",
    "SharedConnections",
    "Signature",
    "Skip",
    "States",
    "Subscription",
    "SyncApp",
    "SyncContext",
    "SyncRun",
    "Transition",
    "entity",
    "flow",
    "job",
    "make_entity",
    "node",
    "on_event",
    "on_status_changed",
    "sign",
    "step",
]

_PLACES = {
    "EntityService": ".entities.services",
    "FunctionService": ".entities.services",
    "Rejected": ".core.errors",
    "States": ".handlers.entity_machine",
    "Transition": ".handlers.entity_machine",
    "entity": ".handlers.entities",
    "make_entity": ".handlers.entities",
    "on_event": ".handlers.entities",
    "on_status_changed": ".handlers.entities",
    "App": ".app",
    "Await": ".durable.declared_waits",
    "AwaitTimeout": ".core.errors",
    "Backoff": ".core.retry",
    "ChildFailed": ".core.errors",
    "ChildFailure": ".durable.child_runs",
    "Context": ".context.context",
    "Event": ".core.events",
    "Fail": ".handlers.nodes",
    "Next": ".handlers.nodes",
    "Skip": ".handlers.nodes",
    "DagBuilder": ".dags.builder",
    "node": ".handlers.nodes",
    "Node": ".jobs.job_trees",
    "PenstockError": ".core.errors",
    "Permanent": ".core.errors",
    "RateLimited": ".core.errors",
    "Retry": ".core.errors",
    "RetryPolicy": ".core.retry",
    "Run": ".app.run_handle",
    "Signature": ".core.signatures",
    "SharedConnections": ".app.shared_connections",
    "Subscription": ".handlers.subscriptions",
    "SyncApp": ".app",
    "SyncContext": ".context.sync_context",
    "SyncRun": ".app.sync_facets",
    "flow": ".handlers.decorators",
    "job": ".handlers.decorators",
    "sign": ".core.signatures",
    "step": ".handlers.decorators",
}


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used: `penstock --help` does not wait for the engine."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_PLACES[name], __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
