"""The built-in node `http`: one request, with a limit on the size of the answer and a guard against requests to private
addresses (SSRF).

The guard resolves the name itself and connects to the address it has checked, for every redirect again: a name that
resolves to another address a moment later changes nothing.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Sequence
from email.utils import parsedate_to_datetime
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec

from ..core.durations import to_ms
from ..core.errors import AddressRefused, ConfigError, Permanent, Retry
from ..core.text import shorten
from ..handlers.breaker_options import BreakerOptions

MAX_REDIRECTS = 5
DEFAULT_MAX_BYTES = 1024 * 1024
MAX_BYTES = 16 * 1024 * 1024
MAX_RETRY_AFTER_S = 3600
REDIRECTS = (301, 302, 303, 307, 308)
Method = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]


class HttpBreaker(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """When the circuit breaker of a host opens, and for how long."""

    failures: Annotated[int, msgspec.Meta(ge=1)] = 5
    open_for: str = "30s"

    def to_options(self) -> BreakerOptions:
        return BreakerOptions(self.failures, to_ms(self.open_for), _read_host)


class HttpConfig(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """Config of an `http` node."""

    url: str
    method: Method = "GET"
    headers: dict[str, str] = {}
    query: dict[str, Any] = {}
    body: Any = None  # JSON
    timeout: Any = "30s"
    max_bytes: int = DEFAULT_MAX_BYTES
    breaker: HttpBreaker | None = None  # for all calls of the same host


def find_http_breaker(config: Any) -> BreakerOptions | None:
    """Return the circuit breaker of a request; its key is the host."""
    given = config.get("breaker") if isinstance(config, dict) else None
    return msgspec.convert(given, HttpBreaker).to_options() if given is not None else None


def _read_host(_input: Any, config: Any) -> str:
    return urlsplit(str(config["url"])).netloc.rpartition("@")[2]


class HttpAnswer(msgspec.Struct):
    """The data of an `http` node."""

    status: int
    headers: dict[str, str]
    body: Any  # parsed if it is JSON, else text


async def send_request(config: Any, guard: AddressGuard) -> HttpAnswer:
    """Send a request and return its answer. A status of 429 or 5xx is retried under the node's policy, after what
    Retry-After asks; any other error status fails the node."""
    try:
        import httpx
    except ImportError:
        raise ConfigError("an http node needs httpx: pip install 'penstock[client]'") from None
    limit = min(config.max_bytes, MAX_BYTES)
    url = httpx.URL(config.url).copy_merge_params(config.query) if config.query else httpx.URL(config.url)
    method, content = config.method, msgspec.json.encode(config.body) if config.body is not None else None
    headers = httpx.Headers(config.headers)
    if content is not None:
        headers.setdefault("content-type", "application/json")
    async with httpx.AsyncClient(timeout=to_ms(config.timeout) / 1000, trust_env=False) as client:
        for _ in range(MAX_REDIRECTS + 1):
            address = await guard.resolve(url.scheme, url.host, url.port)
            pinned = url.copy_with(host=address)
            sent = httpx.Headers({**headers, "host": url.netloc.decode("ascii")})
            options = {"sni_hostname": url.host} if url.scheme == "https" else {}
            try:
                request = client.build_request(method, pinned, headers=sent, content=content, extensions=options)
                answer = await client.send(request, stream=True)
                try:
                    body = await _read(answer, limit)
                finally:
                    await answer.aclose()
            except httpx.HTTPError as problem:
                raise Retry(f"{method} {_show(url)}: {type(problem).__name__}: {problem}") from None
            if answer.status_code not in REDIRECTS or "location" not in answer.headers:
                return _finish(method, _show(url), answer.status_code, dict(answer.headers), body)
            target = url.join(answer.headers["location"])
            if target.host != url.host:
                for name in ("authorization", "cookie"):  # secrets of one host are not for another
                    headers.pop(name, None)
            if answer.status_code == 303 or (answer.status_code in (301, 302) and method == "POST"):
                method, content = "GET", None
            url = target
    raise Permanent(f"{config.method} {shorten(config.url)}: more than {MAX_REDIRECTS} redirects")


class AddressGuard:
    """Resolves names, and refuses addresses that are not public unless they are allowed.

    Args:
        allow: Names, addresses and networks that may be called although they are private: "10.0.0.0/8", "localhost".
        resolve: Returns the addresses of a name, for tests.
    """

    def __init__(self, allow: Sequence[str] = (), resolve: Callable[[str, int], Any] | None = None) -> None:
        self._names = {one.lower() for one in allow}
        self._networks = [network for one in allow if (network := _read_network(one)) is not None]
        self._resolve = resolve or _resolve

    async def resolve(self, scheme: str, host: str, port: int | None) -> str:
        """Return an address of the host that may be called. Raise AddressRefused if one of its addresses may not."""
        if scheme not in ("http", "https"):
            raise AddressRefused(f"an http node calls http and https addresses only, got {shorten(scheme)}")
        if not host:
            raise Permanent("the url of an http node has no host; write it in full, such as https://example.com/path")
        try:
            found = await self._resolve(host, port or (443 if scheme == "https" else 80))
        except OSError as problem:
            raise Retry(f"cannot resolve {host!r}: {problem}") from None
        for address in found:
            if not self._may_call(host, address):
                raise AddressRefused(
                    f"{host!r} resolves to {address}, which is not a public address; add it to the setting http_allow "
                    "if nodes may call it"
                )
        return str(found[0])

    def _may_call(self, host: str, address: str) -> bool:
        if host.lower() in self._names:
            return True
        ip = ipaddress.ip_address(address.partition("%")[0])
        if any(ip.version == network.version and ip in network for network in self._networks):
            return True
        if isinstance(ip, ipaddress.IPv6Address):
            inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo is not None else None)
            if inner is not None:
                ip = inner
            elif ip in _NAT64:
                ip = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        return ip.is_global and not ip.is_multicast and not ip.is_reserved


_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


def _read_network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None  # a name


async def _resolve(host: str, port: int) -> list[str]:
    rows = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(row[4][0]) for row in rows]


async def _read(answer: Any, limit: int) -> bytes:
    """Return the body; stop as soon as it is too large."""
    parts, size = [], 0
    async for part in answer.aiter_bytes():
        size += len(part)
        if size > limit:
            raise Permanent(f"the answer has more than {limit} bytes; raise maxBytes in the node's config")
        parts.append(part)
    return b"".join(parts)


def _finish(method: str, url: str, status: int, headers: dict[str, str], body: bytes) -> HttpAnswer:
    if status == 429 or status >= 500:
        after = _read_retry_after(headers.get("retry-after"), headers.get("date"))
        raise Retry(f"{method} {url} answered {status}", **({"after": after} if after is not None else {}))
    text = body.decode("utf-8", "replace")
    if status >= 400:
        raise Permanent(f"{method} {url} answered {status}: {shorten(text, 200)}")
    is_json = "json" in headers.get("content-type", "")
    try:
        shown = msgspec.json.decode(body) if is_json and body else text
    except msgspec.DecodeError:
        shown = text
    return HttpAnswer(status, headers, shown)


def _read_retry_after(value: str | None, date: str | None) -> float | None:
    """Return the seconds that Retry-After asks for: a number, or a date by the server's own clock."""
    if value is None:
        return None
    if value.strip().isdigit():
        return min(int(value), MAX_RETRY_AFTER_S)
    try:
        seconds = (parsedate_to_datetime(value) - parsedate_to_datetime(date or "")).total_seconds()
    except (ValueError, TypeError):
        return None
    return min(max(seconds, 0), MAX_RETRY_AFTER_S)


def _show(url: Any) -> str:
    """Return the address without its query and its password: they may hold secrets."""
    return str(url.copy_with(query=None, username=None, password=None))
