"""Endpoints: typed functions with a method, a path and a role. Requests are decoded by the function's annotations.

    @get("/api/_queue/{queue}/jobs", summary="List the jobs of a queue")
    async def list_jobs(app: App, queue: str, query: JobQuery) -> list[JobView]: ...

A parameter named in the path is a part of the path. A parameter of a `Query` type is read from the query string, one of
a `Body` type from the JSON body. `app` is the App, `call` the `Call` with the caller and the raw request.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, TypedDict, TypeVar, Unpack, get_type_hints

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import HTTPConnection

from ..app.app import App
from ..app.tokens import OPERATOR, VIEWER, Caller, Role
from ..core.api_errors import ApiError, UnsupportedMediaType
from ..core.near_match import did_you_mean
from ..core.payload import parse_json
from ..core.text import check_text, shorten
from .services import Services

Function = Callable[..., Awaitable[Any]]
Part = TypeVar("Part", bound=msgspec.Struct)
MAX_QUERY_CHARS = 100_000  # of one parameter; `where` is JSON
Limit = Annotated[int, msgspec.Meta(ge=1, le=1000)]  # of a page; an item may have 64 KB
_OUT_OF_RANGE = re.compile(r"Expected `int` ([<>]=) (\d+) - at `\$\.(\w+)`")
_PATH_PART = re.compile(r"{(\w+)(?::\w+)?}")
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)  # of the whole, not of a part


class Query(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Base of query strings: camelCase names, unknown ones are refused."""

    reveal: bool = False  # show secrets; for admins, and recorded


class DryRunQuery(Query):
    """Whether the command only shows what it would write, and which version of the run it expects."""

    dry_run: bool = False
    version: int | None = None  # refuse the command if the run has another one; of a job, its attempt


class Body(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Base of JSON bodies: camelCase names, unknown ones are refused."""


@dataclass(slots=True)
class Call:
    """One request: who makes it, from where, and the request itself."""

    caller: Caller
    request: HTTPConnection
    services: Services
    method: str
    path: str
    query: QueryParams
    body: bytes = b""

    @property
    def is_dry_run(self) -> bool:
        """Whether the command only shows what it would write."""
        return "dryRun" in self.query and self.query["dryRun"].lower() in ("", "1", "true")

    @property
    def wants_reveal(self) -> bool:
        """Whether the answer should show secrets."""
        return "reveal" in self.query and self.query["reveal"].lower() in ("", "1", "true")


class EndpointOptions(TypedDict, total=False):
    """Options of an endpoint; see `Endpoint`."""

    role: Role
    status: int
    may_exist: bool
    is_command: bool
    is_public: bool
    is_stream: bool
    is_upload: bool
    is_secret: bool
    media: str
    body_media: str
    responses: Mapping[int, str]


@dataclass(frozen=True, eq=False)
class Endpoint:
    """A function with its place in the API."""

    method: str
    path: str
    function: Function
    summary: str
    tag: str
    role: Role = VIEWER
    status: int = 200
    may_exist: bool = False  # an answer with `existing` has the status 200 instead: nothing was made
    is_command: bool = False  # it changes something and is recorded in the audit stream
    is_public: bool = False  # a token in the path is enough
    is_stream: bool = False  # the function returns a response of its own
    is_upload: bool = False  # the function reads the body itself, which may be large
    is_secret: bool = False  # the answer is a secret, such as a new token, and is not redacted
    media: str = "application/json"
    body_media: str = "application/json"
    responses: Mapping[int, str] = field(default_factory=dict)

    @property
    def path_names(self) -> list[str]:
        return _PATH_PART.findall(self.path)

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The annotated types of the function's parameters."""
        return _parameters(self.function)

    @property
    def returns(self) -> Any:
        return get_type_hints(self.function).get("return", type(None))

    def find(self, base: type[Part]) -> tuple[str, type[Part]] | None:
        """Return name and type of the parameter with a type derived from `base`."""
        for name, kind in self.parameters.items():
            if inspect.isclass(kind) and issubclass(kind, base):
                return name, kind
        return None


@cache
def _parameters(function: Function) -> Mapping[str, Any]:
    hints = get_type_hints(function)
    return {name: hints[name] for name in inspect.signature(function).parameters}


class Routes:
    """The endpoints of one group, in the order of their definition."""

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self.endpoints: list[Endpoint] = []

    def get(self, path: str, **options: Unpack[EndpointOptions]) -> Callable[[Function], Function]:
        """Add an endpoint that only reads."""
        return self._add("GET", path, {"role": VIEWER, **options})

    def post(self, path: str, **options: Unpack[EndpointOptions]) -> Callable[[Function], Function]:
        """Add a command."""
        return self._add("POST", path, {"role": OPERATOR, "is_command": True, **options})

    def put(self, path: str, **options: Unpack[EndpointOptions]) -> Callable[[Function], Function]:
        """Add a command that creates or replaces."""
        return self._add("PUT", path, {"role": OPERATOR, "is_command": True, **options})

    def patch(self, path: str, **options: Unpack[EndpointOptions]) -> Callable[[Function], Function]:
        """Add a command that changes a part."""
        return self._add("PATCH", path, {"role": OPERATOR, "is_command": True, **options})

    def delete(self, path: str, **options: Unpack[EndpointOptions]) -> Callable[[Function], Function]:
        """Add a command that removes."""
        return self._add("DELETE", path, {"role": OPERATOR, "is_command": True, **options})

    def _add(self, method: str, path: str, options: EndpointOptions) -> Callable[[Function], Function]:
        def add(function: Function) -> Function:
            summary = (inspect.getdoc(function) or "").strip()
            assert summary, f"{function.__name__} needs a docstring: it is the endpoint's summary"
            self.endpoints.append(Endpoint(method, path, function, summary, self.tag, **options))
            return function

        return add


Read = Callable[[App, Call, Mapping[str, Any]], Any]


class _Reader:
    """Reads the arguments of one endpoint's function. What its annotations say is looked up once."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._parts = [(name, _choose_read(name, kind)) for name, kind in endpoint.parameters.items()]
        # Without a query of its own, an endpoint refuses unknown parameters all the same.
        self._refuses_query = endpoint.find(Query) is None and not endpoint.is_public

    def read(self, app: App, call: Call, path_params: Mapping[str, Any]) -> dict[str, Any]:
        if self._refuses_query and call.query:
            decode_query(call.query, Query)
        return {name: read(app, call, path_params) for name, read in self._parts}


def _choose_read(name: str, kind: Any) -> Read:
    if kind is App:
        return lambda app, _call, _path: app
    if kind is Call:
        return lambda _app, call, _path: call
    if inspect.isclass(kind) and issubclass(kind, Query):
        return lambda _app, call, _path: decode_query(call.query, kind)
    if inspect.isclass(kind) and issubclass(kind, Body):
        return lambda _app, call, _path: decode_body(call, kind)
    return lambda _app, _call, path: check_text(path[name], f"{name} in the path")


@cache
def _reader(endpoint: Endpoint) -> _Reader:
    return _Reader(endpoint)


def decode_arguments(endpoint: Endpoint, app: App, call: Call, path_params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of an endpoint's function from a request. Raise ApiError if it does not fit."""
    return _reader(endpoint).read(app, call, path_params)


@cache
def _list_names(kind: type[Query]) -> frozenset[str]:
    return frozenset(info.encode_name for info in msgspec.structs.fields(kind) if _is_list(info.type))


@cache
def _flag_names(kind: type[Query]) -> frozenset[str]:
    return frozenset(info.encode_name for info in msgspec.structs.fields(kind) if info.type is bool)


def decode_query(query: QueryParams, kind: type[Query]) -> Query:
    """Return the query string as a struct."""
    lists, flags = _list_names(kind), _flag_names(kind)
    values: dict[str, Any] = {}
    for key in query:
        found = query.getlist(key)
        if key not in lists and len(found) > 1:
            raise ApiError(f"the query parameter {key!r} appears {len(found)} times; pass it once")
        for text in found:
            check_text(text, f"the query parameter {key!r}", MAX_QUERY_CHARS)
        values[key] = found if key in lists else found[0]
        if key in flags and found[0] == "":
            values[key] = True  # `?dryRun` without a value
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as problem:
        raise ApiError(f"invalid query string: {_describe(problem, kind, 'parameter')}") from None


def decode_body(call: Call, kind: type[Body]) -> Body:
    """Return the JSON body as a struct. An empty body is an empty object."""
    media = call.request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if call.body and media != "application/json" and not media.endswith("+json"):
        raise UnsupportedMediaType(
            f"the body must be JSON, got the content type {media!r}; send the header `content-type: application/json` "
            "(with curl, --json does)"
        )
    try:
        return msgspec.convert(parse_json(call.body, "the body", len(call.body)) if call.body.strip() else {}, kind)
    except msgspec.ValidationError as problem:
        raise ApiError(f"invalid body: {_describe(problem, kind, 'field')}") from None


def _describe(problem: msgspec.ValidationError, kind: type[msgspec.Struct], what: str) -> str:
    """Return what is wrong, and for an unknown name the one that was probably meant."""
    if (range_ := _OUT_OF_RANGE.fullmatch(str(problem))) is not None:
        return f"{range_[3]} must be at {'most' if range_[1] == '<=' else 'least'} {int(range_[2]):,}"
    if (found := _UNKNOWN_FIELD.fullmatch(str(problem))) is None:
        return _cut(problem)
    known = [info.encode_name for info in msgspec.structs.fields(kind)]
    hint = did_you_mean(found[1], known) or f"there are {', '.join(known)}"
    return f"unknown {what} {shorten(found[1])}; {hint}"


def _cut(problem: msgspec.ValidationError) -> str:
    """Return the text of an error without the middle of a long value: its end says where the value is."""
    text = str(problem)
    return text if len(text) <= 400 else f"{text[:200]}…{text[-200:]}"


def _is_list(kind: Any) -> bool:
    options: Sequence[Any] = typing.get_args(kind) if typing.get_origin(kind) is not list else (kind,)
    return any(typing.get_origin(option) is list or option is list for option in (kind, *options))
