"""Durable flows and jobs for Python: plain functions, one event stream a run, one commit an attempt."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .app import App, SyncApp
    from .context.context import Context
    from .context.sync_context import SyncContext
    from .core.errors import AwaitTimeout, PenstockError, Permanent, RateLimited, Retry
    from .core.events import Event
    from .core.retry import Backoff, RetryPolicy
    from .core.signatures import Signature, sign
    from .durable.declared_waits import Await
    from .handlers.decorators import flow, job, step
    from .handlers.subscriptions import Subscription
    from .jobs.job_trees import Node

__version__ = "0.1.0"

__all__ = [
    "App",
    "Await",
    "AwaitTimeout",
    "Backoff",
    "Context",
    "Event",
    "Node",
    "PenstockError",
    "Permanent",
    "RateLimited",
    "Retry",
    "RetryPolicy",
    "Signature",
    "Subscription",
    "SyncApp",
    "SyncContext",
    "flow",
    "job",
    "sign",
    "step",
]

_PLACES = {
    "App": ".app",
    "Await": ".durable.declared_waits",
    "AwaitTimeout": ".core.errors",
    "Backoff": ".core.retry",
    "Context": ".context.context",
    "Event": ".core.events",
    "Node": ".jobs.job_trees",
    "PenstockError": ".core.errors",
    "Permanent": ".core.errors",
    "RateLimited": ".core.errors",
    "Retry": ".core.errors",
    "RetryPolicy": ".core.retry",
    "Signature": ".core.signatures",
    "Subscription": ".handlers.subscriptions",
    "SyncApp": ".app",
    "SyncContext": ".context.sync_context",
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
