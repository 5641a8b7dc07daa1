"""Errors of the HTTP API itself: a request that never reaches the App."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from .errors import ConfigError, NotFound, PenstockError


class ApiError(PenstockError):
    """The HTTP API refuses a request before it reaches the App. `status` is its HTTP status."""

    code = "bad_request"
    status: ClassVar[int] = 400


class Unauthorized(ApiError):
    """The request has no valid token."""

    code = "unauthorized"
    status = 401


class Forbidden(ApiError):
    """The caller's role does not allow the request, or it comes from a place that may not call the API."""

    code = "forbidden"
    status = 403


class NoRoute(ApiError):
    """The API has no such path."""

    code = "no_route"
    status = 404


class MethodNotAllowed(ApiError):
    """The path exists, but not with this method."""

    code = "method_not_allowed"
    status = 405

    def __init__(self, message: str, allowed: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.allowed = tuple(allowed)


class BodyTooLarge(ApiError):
    """The body of the request is larger than the server accepts."""

    code = "body_too_large"
    status = 413


class UnsupportedMediaType(ApiError):
    """The body is not JSON."""

    code = "unsupported_media_type"
    status = 415


class RequestTimeout(ApiError):
    """The body of the request did not arrive in time."""

    code = "request_timeout"
    status = 408


class TooManyRequests(ApiError):
    """Too many requests with a wrong token came from this address."""

    code = "too_many_requests"
    status = 429


class ServerClosing(ApiError):
    """The server is shutting down."""

    code = "server_closing"
    status = 503


class ServerBusy(ApiError):
    """The server has no room for another namespace."""

    code = "server_busy"
    status = 503


class UnknownNamespace(NotFound):
    """The server has no such namespace."""

    code = "unknown_namespace"


class UnknownToken(NotFound):
    """No token has this id."""

    code = "unknown_token"


class UnknownKey(NotFound):
    """The state has no such key."""

    code = "unknown_key"


class BadAddress(ConfigError):
    """The server cannot listen on this address."""

    code = "bad_address"
