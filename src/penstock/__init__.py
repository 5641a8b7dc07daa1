"""Durable flows and jobs for Python: plain functions, one event stream a run, one commit an attempt."""

from typing import TYPE_CHECKING

from .core.lazy_names import lazy_names

if TYPE_CHECKING:
    from .app import App, SyncApp
    from .app.run_handle import Run
    from .app.sync_facets import SyncRun
    from .context.context import Context
    from .context.sync_context import SyncContext
    from .core.errors import AwaitTimeout, PenstockError, Permanent, RateLimited, Retry
    from .core.events import Event
    from .core.retry import Backoff, RetryPolicy
    from .core.signatures import Signature, sign
    from .durable.child_runs import ChildFailure
    from .durable.declared_waits import Await
    from .handlers.decorators import flow, job, step
    from .handlers.subscriptions import Subscription
    from .jobs.job_trees import Node
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "App": ".app",
            "Await": ".durable.declared_waits",
            "AwaitTimeout": ".core.errors",
            "Backoff": ".core.retry",
            "ChildFailure": ".durable.child_runs",
            "Context": ".context.context",
            "Event": ".core.events",
            "Node": ".jobs.job_trees",
            "PenstockError": ".core.errors",
            "Permanent": ".core.errors",
            "RateLimited": ".core.errors",
            "Retry": ".core.errors",
            "RetryPolicy": ".core.retry",
            "Run": ".app.run_handle",
            "Signature": ".core.signatures",
            "Subscription": ".handlers.subscriptions",
            "SyncApp": ".app",
            "SyncContext": ".context.sync_context",
            "SyncRun": ".app.sync_facets",
            "flow": ".handlers.decorators",
            "job": ".handlers.decorators",
            "sign": ".core.signatures",
            "step": ".handlers.decorators",
        },
    )

__version__ = "0.1.0"

__all__ = [
    "App",
    "Await",
    "AwaitTimeout",
    "Backoff",
    "ChildFailure",
    "Context",
    "Event",
    "Node",
    "PenstockError",
    "Permanent",
    "RateLimited",
    "Retry",
    "RetryPolicy",
    "Run",
    "Signature",
    "Subscription",
    "SyncApp",
    "SyncContext",
    "SyncRun",
    "flow",
    "job",
    "sign",
    "step",
]
