"""Durable flows and jobs for Python: plain functions, one event stream a run, one commit an attempt."""

from .app import App, SyncApp
from .core.errors import PenstockError, Permanent, Retry
from .core.events import Event
from .core.retry import Backoff, RetryPolicy
from .flows.definition import Subscription, flow, step
from .jobs.context import Context, SyncContext
from .jobs.decorator import job

__version__ = "0.1.0"

__all__ = [
    "App",
    "Backoff",
    "Context",
    "Event",
    "PenstockError",
    "Permanent",
    "Retry",
    "RetryPolicy",
    "Subscription",
    "SyncApp",
    "SyncContext",
    "flow",
    "job",
    "step",
]
