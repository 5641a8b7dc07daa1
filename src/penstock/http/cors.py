"""Cross-origin requests: pages of the allowed origins may call the API, no others."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from starlette.requests import Request
from starlette.responses import Response

from .auth import check_origin

MAX_AGE_S = 600
HEADERS = "authorization, content-type, last-event-id"


def is_preflight(request: Request) -> bool:
    """Return whether a browser asks if a page of another origin may send a request."""
    return request.method == "OPTIONS" and "access-control-request-method" in request.headers


def answer_preflight(request: Request, methods: Iterable[str], allowed: Collection[str]) -> Response:
    """Answer what a page may send. Raise Forbidden for a page of another origin."""
    check_origin(request, allowed)
    return Response(
        status_code=204,
        headers={
            "access-control-allow-methods": ", ".join(sorted(methods)),
            "access-control-allow-headers": HEADERS,
            "access-control-max-age": str(MAX_AGE_S),
        },
    )


def allow_origin(request: Request, response: Response, allowed: Collection[str]) -> None:
    """Let the page that made a request read the answer, if its origin is allowed."""
    if not allowed:
        return
    origin = request.headers.get("origin")
    response.headers["vary"] = "origin"
    if origin is not None and origin in allowed:
        response.headers["access-control-allow-origin"] = origin
