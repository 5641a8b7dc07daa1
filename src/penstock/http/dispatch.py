"""Dispatch: check the caller of a request, call the endpoint's function and encode the answer."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from ..app.store_urls import shown_url
from ..app.tokens import ADMIN, Caller
from ..core.api_errors import BodyTooLarge, Forbidden, MethodNotAllowed, RequestTimeout
from ..core.errors import PenstockError
from .audit import call_recorded
from .auth import check_headers
from .endpoints import Call, Endpoint, decode_arguments
from .services import Services
from .statuses import status_of

MAX_BODY_BYTES = 10 * 2**20
BODY_TIMEOUT_S = 30.0
JSON = "application/json"
# The answers hold data of any program: no browser may guess a type, frame them or run them.
SECURITY_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}
_RAW_HEADERS = [(name.encode(), value.encode()) for name, value in {**SECURITY_HEADERS, "content-type": JSON}.items()]
_encode = msgspec.json.Encoder().encode
PUBLIC = Caller("public")
# What to do next, where the message has it not: it is about the value that was wrong.
HINTS = {
    "no_route": "GET /api/openapi.json lists every path",
    "server_closing": "try again after the seconds of the header Retry-After",
    "server_busy": "try again after the seconds of the header Retry-After",
    "store_unavailable": "try again after the seconds of the header Retry-After; GET /ready answers 200 again then",
    "too_many_requests": "try again after the seconds of the header Retry-After",
    "internal": "the log of the server has the request and the reason",
}


async def answer(services: Services, request: Request, path: str) -> Response:
    """Answer a request to a path of the API."""
    services.require_open()
    check_headers(request)
    endpoint, path_params = services.router.find(request.method, path)
    caller = PUBLIC
    if not endpoint.is_public:
        caller = await services.guard.identify(request, allow_ticket=endpoint.is_stream)
        check_role(endpoint, caller)
    body = b"" if endpoint.is_upload else await read_body(request)
    call = Call(caller, request, services, request.method, path, request.query_params, body)
    if (tracer := services.app._tracer) is None:
        return await call_endpoint(endpoint, call, path_params)
    with tracer.serve(request.method, endpoint.path, request.headers) as span:
        try:
            response = await call_endpoint(endpoint, call, path_params)
        except PenstockError as problem:
            span.set("http.response.status_code", status_of(problem))
            span.set("error.type", problem.code)
            raise
        span.set("http.response.status_code", response.status_code)
        return response


def check_role(endpoint: Endpoint, caller: Caller) -> None:
    """Raise Forbidden unless the caller may use the endpoint."""
    if not endpoint.is_public and not caller.may(endpoint.role):
        raise Forbidden(
            f"{caller.name!r} has the role {caller.role}; this request needs {endpoint.role}, and `penstock tokens "
            f"add NAME --role {endpoint.role}` creates a token with it"
        )


async def call_endpoint(endpoint: Endpoint, call: Call, path_params: dict[str, Any]) -> Response:
    """Decode the arguments, call the function, record a command and encode the answer."""
    services = call.services
    reveal = _check_reveal(call)
    arguments = decode_arguments(endpoint, services.app, call, path_params)
    if endpoint.is_stream:
        return await endpoint.function(**arguments)  # type: ignore[no-any-return]
    if endpoint.is_command or reveal:
        value = await call_recorded(services.app, endpoint, call, arguments)
    else:
        value = await endpoint.function(**arguments)
    if isinstance(value, Response):
        return value
    status = 200 if endpoint.may_exist and value.existing else endpoint.status
    return json_response(services, value, status, reveal or endpoint.is_secret)


class JsonResponse(Response):
    """An answer whose body is encoded already. The headers that all answers share are not encoded again."""

    def __init__(self, body: bytes, status: int) -> None:
        self.status_code = status
        self.background = None
        self.body = body
        self.raw_headers = [*_RAW_HEADERS, (b"content-length", b"%d" % len(body))]


def json_response(services: Services, value: Any, status: int = 200, reveal: bool = False) -> Response:
    """Encode an answer, without secrets unless an admin asked to see them."""
    body = _encode(value)
    return JsonResponse(body if reveal else services.app._bodies.redact_json(body), status)


def error_object(services: Services | None, problem: PenstockError) -> dict[str, Any]:
    """Return an error as the object that the command line prints too, without secrets."""
    message = str(problem)
    if services is not None:
        # Where the store is concerns those who run the server, not those who call it.
        message = message.replace(f" in {shown_url(services.app.settings.url)};", ";")
        message = services.app._bodies.redact_text(message)
    error = {"code": problem.code, "message": message}
    if (hint := HINTS.get(problem.code)) is not None:
        error["hint"] = hint
    return {"error": error}


def internal_error() -> dict[str, Any]:
    """Return the error of a request that failed by a bug. The log has the reason, the answer has not."""
    error = {"code": "internal", "message": "the server failed; its log has the reason", "hint": HINTS["internal"]}
    return {"error": error}


def error_response(services: Services | None, problem: PenstockError) -> Response:
    """Return an error as a response."""
    status = status_of(problem)
    headers = dict(SECURITY_HEADERS)
    if status == 401:
        headers["www-authenticate"] = 'Bearer realm="penstock"'
    if isinstance(problem, MethodNotAllowed) and problem.allowed:
        headers["allow"] = ", ".join(problem.allowed)
    if status in (408, 413):
        headers["connection"] = "close"  # the rest of the body is not read
    if status in (429, 503):
        headers["retry-after"] = "60" if status == 429 else "1"
    return Response(msgspec.json.encode(error_object(services, problem)), status, headers, JSON)


def _check_reveal(call: Call) -> bool:
    """Return whether the answer shows secrets: `?reveal=true`, for admins."""
    if call.wants_reveal and not call.caller.may(ADMIN):
        raise Forbidden(f"{call.caller.name!r} has the role {call.caller.role}; reveal needs the role {ADMIN}")
    return call.wants_reveal


async def read_body(request: Request) -> bytes:
    """Return the body. Refuse one that is too large before it is read, and one that does not arrive."""
    if request.method in ("GET", "HEAD", "DELETE") and "content-length" not in request.headers:
        return b""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and (len(declared) > 12 or int(declared) > MAX_BODY_BYTES):
        raise BodyTooLarge(f"the body has {declared[:20]} bytes; the limit is {MAX_BODY_BYTES:,}")
    parts, size = [], 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            more = True
            while more:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                more = message.get("more_body", False)
                if size > MAX_BODY_BYTES:
                    raise BodyTooLarge(f"the body has more than {MAX_BODY_BYTES:,} bytes, which is the limit")
    except TimeoutError:
        raise RequestTimeout(f"the body did not arrive within {BODY_TIMEOUT_S:g} s") from None
    return parts[0] if len(parts) == 1 else b"".join(parts)
