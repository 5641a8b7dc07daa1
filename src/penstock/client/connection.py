"""The connection to a server: requests, answers as typed values, errors as the exceptions that App raises."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from .. import errors as error_tree
from ..app.arguments import UNSET
from ..app.store_urls import mask
from ..commit.preview import Preview
from ..core.errors import BadArgument, ConfigError, PenstockError, StoreUnavailable, UnknownJob, UnknownRun
from ..core.payload import to_plain
from ..core.text import check_text, shorten

T = TypeVar("T")
RECONNECT_PAUSE_S = 0.5
MAX_RECONNECT_PAUSE_S = 5.0
CONNECT_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 120.0
MAX_PARAMETER_CHARS = 20_000  # of one parameter of a query
MAX_NUMBER = 10**30
NULL: Any = object()  # a field of a body whose value is null; those that are None are left out
_TOKEN = re.compile(r"[!-~]+")
_CLASSES: dict[str, type[PenstockError]] = {
    cls.code: cls for cls in map(error_tree.__dict__.get, error_tree.__all__) if cls is not None
}

_UNKNOWN: dict[str, tuple[type[PenstockError], str]] = {
    "/api/_run/{}": (UnknownRun, "run"),
    "/api/_job/{}": (UnknownJob, "job"),
    "/api/_dlq/letters/{}": (UnknownJob, "dead letter"),
}


class Message(msgspec.Struct, frozen=True):
    """A server-sent event."""

    id: str
    name: str
    data: str


class Page(msgspec.Struct, Generic[T]):
    """A page of a list."""

    items: list[T]
    next: str | None = None


class _Action(msgspec.Struct):
    ok: bool
    preview: Preview | None = None


class Connection:
    """Requests to one server. It opens with the first request."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        reveal: bool = False,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        if not isinstance(url, str) or not url.startswith(("http://", "https://")):
            raise ConfigError(f"the URL of a server starts with http:// or https://, got {shorten(url, 200)}")
        headers = {"authorization": f"Bearer {_check_token(token)}"} if token is not None else {}
        timeout = httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        self.url = url.rstrip("/")
        self._always = {"reveal": "true"} if reveal else {}
        try:
            self._http = httpx.AsyncClient(base_url=self.url, headers=headers, timeout=timeout, transport=transport)
        except (httpx.InvalidURL, ValueError):  # their text has the URL, and with it a password
            raise ConfigError(f"the URL of the server is not valid: {shorten(mask(url), 200)}") from None

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def get(self, kind: type[T], /, *path: str, **query: Any) -> T:
        """Read something."""
        return await self.request("GET", kind, *path, query=query)

    async def post(self, kind: type[T], /, *path: str, **body: Any) -> T:
        """Give a command. Fields that are None are left out."""
        return await self.request("POST", kind, *path, body=body)

    async def delete(self, kind: type[T], /, *path: str, **query: Any) -> T:
        """Remove something."""
        return await self.request("DELETE", kind, *path, query=query)

    async def post_for_id(self, *path: str, **body: Any) -> str:
        """Give a command that adds something, and return its id."""
        return (await self.post(dict[str, str], *path, **body))["id"]

    async def post_for_ok(self, *path: str, **body: Any) -> bool:
        """Give a command and return whether something changed."""
        return (await self.post(dict[str, bool], *path, **body))["ok"]

    async def act(
        self,
        kind: type[T],
        *path: str,
        dry_run: bool = False,
        version: int | Preview | None = None,
        method: str = "POST",
        body: Mapping[str, Any] | None = None,
    ) -> T:
        """Give a command that can be a dry run, or be refused if its run has moved on."""
        expected = version.version if isinstance(version, Preview) else version
        query = {"dryRun": dry_run or None, "version": expected}
        return await self.request(method, kind, *path, query=query, body=body if method == "POST" else None)

    async def act_for_ok(self, *path: str, **options: Any) -> bool | Preview:
        """Give a command and return whether something changed, or what would be written."""
        answer = await self.act(_Action, *path, **options)
        return answer.ok if answer.preview is None else answer.preview

    async def wait_for_result(self, *path: str, timeout: str) -> Any:
        """Wait for a result for as long as the server may take."""
        return (await self.request("GET", dict[str, Any], *path, query={"timeout": timeout}, read_timeout_s=None))[
            "result"
        ]

    async def request(
        self,
        method: str,
        kind: type[T],
        *path: str,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        read_timeout_s: float | None = READ_TIMEOUT_S,
    ) -> T:
        """Send a request and return the decoded answer."""
        content = None
        if body is not None:
            given = {key: None if value is NULL else value for key, value in body.items() if value is not None}
            content = msgspec.json.encode(to_plain(given, "the request"))
        return await self.send(method, kind, *path, query=query, content=content, read_timeout_s=read_timeout_s)

    async def send(
        self,
        method: str,
        kind: type[T],
        *path: str,
        query: Mapping[str, Any] | None = None,
        content: bytes | AsyncIterable[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        read_timeout_s: float | None = READ_TIMEOUT_S,
    ) -> T:
        """Send bytes and return the decoded answer. Raise what the server reports as the exception of that code."""
        body = await self.send_bytes(
            method, *path, query=query, content=content, headers=headers, read_timeout_s=read_timeout_s
        )
        return msgspec.json.decode(body, type=kind)

    async def send_bytes(
        self,
        method: str,
        *path: str,
        query: Mapping[str, Any] | None = None,
        content: bytes | AsyncIterable[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        read_timeout_s: float | None = READ_TIMEOUT_S,
    ) -> bytes:
        """Send bytes and return the bytes of the answer."""
        headers = {**({"content-type": "application/json"} if content is not None else {}), **(headers or {})}
        headers |= _trace_headers()
        timeout = httpx.Timeout(read_timeout_s, connect=CONNECT_TIMEOUT_S)
        try:
            answer = await self._http.request(
                method,
                join_path(path),
                params={**show_query(query or {}), **self._always},
                content=content,
                headers=headers,
                timeout=timeout,
            )
        except httpx.InvalidURL as problem:
            raise BadArgument(f"the arguments are too long for the address of a request: {problem}") from None
        except httpx.HTTPError as problem:
            raise self._unavailable(problem) from problem
        if answer.is_error:
            raise read_error(answer.status_code, answer.content)
        return answer.content

    @asynccontextmanager
    async def open_bytes(self, *path: str) -> AsyncIterator[httpx.Response]:
        """Open an answer that is read as it arrives."""
        try:
            async with self._http.stream("GET", join_path(path), params=self._always) as answer:
                if answer.is_error:
                    raise read_error(answer.status_code, await answer.aread())
                yield answer
        except httpx.HTTPError as problem:
            raise self._unavailable(problem) from problem

    async def read_lines(self, *path: str) -> AsyncGenerator[bytes]:
        """Yield the lines of an answer as they arrive."""
        async with self.open_bytes(*path) as answer:
            async for line in split_lines(answer.aiter_bytes()):
                yield line

    async def follow(
        self, *path: str, after: str | None, opened: asyncio.Event | None = None, **query: Any
    ) -> AsyncGenerator[Message]:
        """Yield the messages of an event stream. Reconnect after the last one whenever the connection ends.

        `opened` is set as soon as the server has named the place from which it sends."""
        cursor, pause = after, RECONNECT_PAUSE_S
        while True:
            try:
                async with aclosing(self._messages(join_path(path), cursor, show_query(query))) as messages:
                    async for message in messages:
                        cursor, pause = message.id or cursor, RECONNECT_PAUSE_S
                        if opened is not None:
                            opened.set()
                        if message.name in ("message", "snapshot"):
                            yield message
            except httpx.HTTPError:
                pass
            except PenstockError as problem:
                if not isinstance(problem, StoreUnavailable) and problem.code != "server_closing":
                    raise
            await asyncio.sleep(pause)
            pause = min(pause * 2, MAX_RECONNECT_PAUSE_S)

    async def stream(self, method: str, path: str, body: Any) -> AsyncGenerator[Message]:
        """Yield the messages of one answer; raise StoreUnavailable if the connection is lost."""
        content, headers = msgspec.json.encode(to_plain(body, "the request")), {"content-type": "application/json"}
        try:
            request = self._http.stream(
                method, path, params=self._always, content=content, headers=headers, timeout=None
            )
            async with request as answer:
                async for message in read_messages(answer):
                    yield message
        except httpx.HTTPError as problem:
            raise self._unavailable(problem) from problem

    async def _messages(self, path: str, after: str | None, query: Mapping[str, Any]) -> AsyncGenerator[Message]:
        params = {**query, **({"after": after} if after is not None else {})}
        async with self._http.stream("GET", path, params=params) as answer:
            async for message in read_messages(answer):
                yield message

    def _unavailable(self, problem: Exception) -> StoreUnavailable:
        return StoreUnavailable(
            f"the server {mask(self.url)} does not answer ({type(problem).__name__}: {problem}); check the URL and "
            "that `penstock serve` runs"
        )


def _check_token(token: str) -> str:
    """Return a token that a header can hold. The error does not show it."""
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise ConfigError("the token has a space, a line end or a letter that no token has; copy it in full, and alone")
    return token


async def read_messages(answer: httpx.Response) -> AsyncGenerator[Message]:
    """Yield the messages of an event stream as they arrive; raise what the server refused."""
    if answer.is_error:
        raise read_error(answer.status_code, await answer.aread())
    id, name, data = "", "message", None
    async for encoded in split_lines(answer.aiter_bytes()):
        line = encoded.removesuffix(b"\r").decode()
        key, _, value = line.partition(": ")
        if key == "id":
            id = value
        elif key == "event":
            name = value
        elif key == "data":
            data = value if data is None else f"{data}\n{value}"
        elif not line and data is not None:
            yield Message(id, name, data)
            name, data = "message", None


async def split_lines(parts: AsyncIterable[bytes]) -> AsyncGenerator[bytes]:
    """Yield the lines of a text as they arrive. Only a newline ends one: JSON may hold every other separator."""
    held: list[bytes] = []  # of a line that has not ended
    async for part in parts:
        first, *lines = part.split(b"\n")
        held.append(first)
        if lines:
            yield b"".join(held)
            held = [lines.pop()]
            for line in lines:
                yield line


def join_path(parts: tuple[str, ...]) -> str:
    """Return a path. The first part is written as it is, the others are data and are escaped.

    Raise the error of App for an id that no path can hold: it is of nothing."""
    first, *rest = parts
    checked = [check_text(part, "an id or a name") for part in rest]
    for start, (cls, what) in _UNKNOWN.items():
        if first.startswith(start) and (not checked[0] or "/" in checked[0]):
            raise cls(f"no {what} with id {shorten(checked[0])}; check the id and the URL")
    return first.format(*map(_escape, checked))


def _escape(part: str) -> str:
    # Every HTTP library resolves `.` and `..`: a request would reach another path.
    return part.replace(".", "%2E") if part in (".", "..") else quote(part, safe="")


def read_error(status: int, body: bytes) -> PenstockError:
    """Return the exception that App would have raised, from an answer of the server."""
    try:
        error = msgspec.json.decode(body)["error"]
        code, message = str(error["code"]), str(error["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return StoreUnavailable(f"the server answered with status {status} and no error; is it a Penstock server?")
    cls = _CLASSES.get(code, PenstockError)
    problem = cls.__new__(cls)
    problem.args = (message,)
    return problem


def show_input(input: Any) -> dict[str, Any]:
    """Return the field `input` of a body: none for UNSET, and null for None."""
    return {} if input is UNSET else {"input": NULL if input is None else input}


def show_query(query: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a query as text. Those that are None are left out."""
    return {name: _show_parameter(name, value) for name, value in query.items() if value is not None}


def _show_parameter(name: str, value: Any) -> str | list[str]:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float) and abs(value) < MAX_NUMBER:
        return str(value)
    if isinstance(value, list):
        return [check_text(one, name, MAX_PARAMETER_CHARS) for one in value]
    if not isinstance(value, str):
        raise BadArgument(f"{name} must be text or a number that a query can hold, got {shorten(value)}")
    return check_text(value, name, MAX_PARAMETER_CHARS)


def _trace_headers() -> dict[str, str]:
    """Return the headers that carry the caller's trace, if the program uses OpenTelemetry."""
    if "opentelemetry" not in sys.modules:
        return {}
    from opentelemetry import propagate

    headers: dict[str, str] = {}
    propagate.inject(headers)
    return headers
