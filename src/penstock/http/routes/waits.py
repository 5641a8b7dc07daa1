"""`/api/_waits`: what runs wait for."""

from __future__ import annotations

from typing import Any

import msgspec

from ...app.app import App
from ...app.waits import WaitView
from ...commit.preview import Preview
from ...core.signatures import Signature
from ...durable.trigger_waits import trigger_url
from ..endpoints import Body, Call, DryRunQuery, Limit, Query, Routes
from .runs import parse_time

routes = Routes("waits")


class WaitQuery(Query):
    """Which waits to list."""

    run: str | None = None
    kind: str | None = None  # time, event or trigger
    state: str = "pending"  # or resolved, expired, cancelled
    since: str | None = None  # a time, or a duration such as 1h
    until: str | None = None
    before: str | None = None
    limit: Limit = 50


class WaitPage(msgspec.Struct):
    """A page of waits. `next` is the `before` of the next page, or null."""

    items: list[WaitView]
    next: str | None = None


class TokenView(msgspec.Struct):
    """A new token of a trigger, and the URL that fires it: only its path if the setting `public_url` is empty."""

    token: str
    url: str


@routes.get("/api/_waits")
async def list_waits(app: App, query: WaitQuery) -> WaitPage:
    """List waits in one state, newest first."""
    found = await app.waits.list(
        run=query.run,
        kind=query.kind,
        state=query.state,
        since=parse_time(query.since),
        until=parse_time(query.until),
        before=query.before,
        limit=query.limit,
    )
    return WaitPage(found, found[-1].id if len(found) == query.limit else None)


@routes.post("/api/_waits/{id}/token", status=201, is_secret=True)
async def create_trigger_token(app: App, id: str) -> TokenView:
    """Create a new token for a pending trigger."""
    token = await app.waits.token(id)
    return TokenView(token, trigger_url(app.settings.public_url, token))


class SignBody(Body):
    """The call of a trigger to sign."""

    token: str
    data: Any = None


@routes.post("/api/_waits/sign", is_secret=True)
async def sign_trigger_call(app: App, body: SignBody) -> Signature:
    """Sign a call of a trigger, with the secret in the environment variable that it names. The body is base64."""
    return await app.waits.sign(body.token, body.data)


class ResolveBody(Body):
    """What a wait is resolved with."""

    data: Any = None
    reason: str | None = None
    by: str | None = None  # recorded beside the name of the token
    dry_run: bool = False  # as `?dryRun`


class CancelWaitBody(Body):
    """Why a wait is cancelled."""

    reason: str | None = None
    by: str | None = None  # recorded beside the name of the token
    dry_run: bool = False


class WaitAction(msgspec.Struct, rename="camel", omit_defaults=True):
    """The run that resumes, or what would be written."""

    run: str | None = None
    preview: Preview | None = None


@routes.get("/api/_waits/{id}")
async def get_wait(app: App, id: str) -> WaitView:
    """Return a wait."""
    return await app.waits.get(id)


@routes.post("/api/_waits/{id}/resolve")
async def resolve_wait(app: App, call: Call, id: str, query: DryRunQuery, body: ResolveBody) -> WaitAction:
    """Resolve a pending wait by hand: end a sleep, give an event, fire a trigger."""
    return _action(
        await app.waits.resolve(
            id,
            body.data,
            reason=body.reason,
            by=_name_caller(call, body.by),
            dry_run=body.dry_run or query.dry_run,
            version=query.version,
        )
    )


@routes.post("/api/_waits/{id}/cancel")
async def cancel_wait(app: App, call: Call, id: str, query: DryRunQuery, body: CancelWaitBody) -> WaitAction:
    """Cancel a pending wait. It raises WaitCancelled in the run."""
    return _action(
        await app.waits.cancel(
            id,
            reason=body.reason,
            by=_name_caller(call, body.by),
            dry_run=body.dry_run or query.dry_run,
            version=query.version,
        )
    )


def _name_caller(call: Call, by: str | None) -> str:
    """Return who acts, for the record. What a caller writes does not replace the name of its token."""
    return call.caller.name if not by else f"{by} ({call.caller.name})"


def _action(done: str | Preview) -> WaitAction:
    return WaitAction(run=done) if isinstance(done, str) else WaitAction(preview=done)
