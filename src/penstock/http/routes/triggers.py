"""`/api/triggers/{token}`: the address that resumes a waiting step. The token is the only credential."""

from __future__ import annotations

from typing import Any

import msgspec

from ...app.app import App
from ...core.errors import UnknownTrigger
from ...core.payload import parse_json
from ...core.signatures import Signature
from ..auth import address_of
from ..endpoints import Call, Routes

routes = Routes("triggers")


class Fired(msgspec.Struct):
    """The run that a trigger resumed."""

    run: str


async def fire(app: App, call: Call, token: str) -> Fired:
    """Fire a trigger: the waiting step resumes with the JSON body. A signed trigger needs the webhook's signature."""
    address, limit = address_of(call.request), call.services.trigger_limit
    limit.check(address)
    try:
        return await _fire(app, call, token)
    except UnknownTrigger:
        limit.count(address)
        raise


async def _fire(app: App, call: Call, token: str) -> Fired:
    headers = call.request.headers
    caller: Any = {"source": "http", "ip": address_of(call.request) or None}
    if "webhook-signature" in headers:
        signature = Signature.from_headers(headers, call.body)
        return Fired(await app.waits.fire(token, signature=signature, **caller))
    data: Any = parse_json(call.body, "the body", len(call.body)) if call.body.strip() else None
    return Fired(await app.waits.fire(token, data, **caller))


# One function for each path: an operation of the API has one name.


@routes.post("/api/triggers/{token}", is_public=True, is_command=False)
async def fire_trigger(app: App, call: Call, token: str) -> Fired:
    """Fire a trigger: the waiting step resumes with the JSON body. A token works once."""
    return await fire(app, call, token)


@routes.post("/api/_triggers/{token}", is_public=True, is_command=False)
async def fire_trigger_alias(app: App, call: Call, token: str) -> Fired:
    """Fire a trigger; another path for `/api/triggers/{token}`."""
    return await fire(app, call, token)


@routes.post("/api/_flows/triggers/{token}", is_public=True, is_command=False)
async def fire_flow_trigger(app: App, call: Call, token: str) -> Fired:
    """Fire a trigger; another path for `/api/triggers/{token}`."""
    return await fire(app, call, token)
