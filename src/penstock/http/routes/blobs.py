"""`/api/_blobs`: blobs of the blob store; `/api/blobs/{key}`: signed URLs of those that are no bucket's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

from starlette.requests import ClientDisconnect
from starlette.responses import Response, StreamingResponse

from ...app.app import App
from ...app.tokens import ADMIN, OPERATOR
from ...context.blobs import show_blob
from ...core.api_errors import Forbidden
from ...core.payload import DECODE_ERRORS
from ...ports.blobs import Blob
from ..dispatch import MAX_BODY_BYTES, SECURITY_HEADERS
from ..endpoints import Body, Call, Limit, Query, Routes
from .jobs import Done

routes = Routes("blobs")
JSON = "application/json"


class BlobQuery(Query):
    """Which blobs to list."""

    prefix: str = ""
    after: str | None = None
    limit: Limit = 100


class SignedQuery(Query):
    """The end of a signed URL."""

    expires: int
    signature: str


class UrlBody(Body):
    """What a signed URL allows, and for how long."""

    key: str
    expires: float | str = "15m"
    method: str = "GET"


class SignedUrl(Body):
    """A URL that works without a token until it expires."""

    url: str


@routes.get("/api/_blobs")
async def list_blobs(app: App, query: BlobQuery) -> list[Blob]:
    """List blobs in the order of their keys, without their hashes."""
    return list(await app.blobs.list(query.prefix, after=query.after, limit=query.limit))


@routes.get("/api/_blob_info/{key:path}")
async def get_blob_info(app: App, key: str) -> Blob:
    """Return size, type and hash of a blob."""
    return await app.blobs.info(key)


@routes.get("/api/_blobs/{key:path}", role=OPERATOR, media="application/octet-stream")
async def get_blob(app: App, call: Call, key: str) -> bytes:
    """Return the bytes of a blob.

    Secrets in a JSON blob of at most 10 MB are redacted; a larger one needs the role admin. Other types are returned as
    they are."""
    return await _send(app, call, key, is_signed=False)  # type: ignore[return-value]


@routes.put("/api/_blobs/{key:path}", is_upload=True, body_media="application/octet-stream")
async def put_blob(app: App, call: Call, key: str) -> Blob:
    """Put a blob: the body is its bytes, the header content-type its media type."""
    return await _receive(app, call, key)


@routes.delete("/api/_blobs/{key:path}")
async def delete_blob(app: App, key: str) -> Done:
    """Delete a blob."""
    return Done(await app.blobs.delete(key))


@routes.post("/api/_blob_urls", is_secret=True)
async def sign_blob_url(app: App, body: UrlBody) -> SignedUrl:
    """Return a URL that allows to read or write one blob without a token until it expires."""
    return SignedUrl(url=await app.blobs.url(body.key, expires=body.expires, method=body.method))  # type: ignore[arg-type]


@routes.get("/api/blobs/{key:path}", is_public=True, media="application/octet-stream")
async def get_signed_blob(app: App, call: Call, key: str, query: SignedQuery) -> bytes:
    """Return the bytes of a blob, by a signed URL."""
    await app.blobs._view.check_url("GET", key, query.expires, query.signature)
    return await _send(app, call, key, is_signed=True)  # type: ignore[return-value]


@routes.put(
    "/api/blobs/{key:path}", is_public=True, is_command=False, is_upload=True, body_media="application/octet-stream"
)
async def put_signed_blob(app: App, call: Call, key: str, query: SignedQuery) -> Blob:
    """Put a blob, by a signed URL."""
    await app.blobs._view.check_url("PUT", key, query.expires, query.signature)
    return await _receive(app, call, key)


async def _receive(app: App, call: Call, key: str) -> Blob:
    """Put the body as it arrives. A body that breaks off replaces nothing."""
    given = call.request.headers.get("content-type")
    is_default = given in (None, "", "application/x-www-form-urlencoded")  # what curl sends by itself
    return await app.blobs.put(key, _read(call.request), content_type=None if is_default else given)


async def _read(request: Any) -> AsyncIterator[bytes]:
    more = True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        yield message.get("body", b"")
        more = message.get("more_body", False)


async def _send(app: App, call: Call, key: str, *, is_signed: bool) -> Response:
    """Send a blob as a download: no browser may show it as a page of this server."""
    reader, record = await app.blobs._view.open(key)
    blob = show_blob(reader.facts, record)
    name = quote(key.rpartition("/")[2])
    headers = {**SECURITY_HEADERS, "content-disposition": f"attachment; filename*=utf-8''{name}"}
    if blob.sha256 is not None:
        headers["x-content-sha256"] = blob.sha256
    is_json = blob.content_type.partition(";")[0].strip() == JSON or key.endswith(".json")
    if is_json and not is_signed and not call.wants_reveal:
        if blob.size > MAX_BODY_BYTES:
            _check_admin(call)
        else:
            headers.pop("x-content-sha256", None)
            return Response(_redact(app, await app.blobs.get(key)), headers=headers, media_type=blob.content_type)
    headers["content-length"] = str(blob.size)
    return StreamingResponse(_chunks(reader), headers=headers, media_type=blob.content_type)


def _redact(app: App, content: bytes) -> bytes:
    try:
        return app._bodies.redact_json(content)
    except DECODE_ERRORS:  # it is no JSON after all
        return app._bodies.redact_text(content.decode("utf-8", "replace")).encode()


def _check_admin(call: Call) -> None:
    if not call.caller.may(ADMIN):
        raise Forbidden(
            f"{call.caller.name!r} is a {call.caller.role}; a JSON blob of more than {MAX_BODY_BYTES:,} bytes is not "
            f"redacted, and needs the role {ADMIN}"
        )


async def _chunks(reader: Any) -> AsyncIterator[bytes]:
    async for chunk in reader:
        yield chunk
