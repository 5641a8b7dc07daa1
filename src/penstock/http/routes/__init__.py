"""The endpoints of the API, one file for each group."""

from __future__ import annotations

from ..endpoints import Routes
from . import (
    alerts,
    blobs,
    dags,
    dead_letters,
    entities,
    events,
    flows,
    jobs,
    queues,
    runs,
    schedules,
    server,
    state,
    tokens,
    triggers,
    waits,
    webhooks,
)

ALL_ROUTES: tuple[Routes, ...] = (
    queues.routes,
    jobs.routes,
    dead_letters.routes,
    flows.routes,
    dags.routes,
    entities.routes,
    runs.routes,
    events.routes,
    state.routes,
    blobs.routes,
    waits.routes,
    triggers.routes,
    webhooks.routes,
    alerts.routes,
    schedules.routes,
    tokens.routes,
    server.routes,
)
