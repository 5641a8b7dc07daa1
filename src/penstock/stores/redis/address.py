"""Where a Redis is and how to get in, from a URL."""

from __future__ import annotations

import re
import ssl
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from ...core.errors import SettingError

FORMS = "redis://host:6379/0, rediss://user:password@host:6379/0 or redis+sentinel://host:26379,host:26379/name/0"
OPTIONS = {
    "ca": "the file with the authority of the server's certificate",
    "db": "the database, if it is not in the path",
    "prefix": "how the keys of queues begin",
    "sentinel_password": "what sentinels ask for",
}
SCHEMES = ("redis", "rediss", "redis+sentinel", "rediss+sentinel")


class Address(msgspec.Struct, frozen=True):
    """A server, or the sentinels that know which one it is."""

    hosts: tuple[tuple[str, int], ...]
    user: str | None = None
    password: str | None = None
    db: int = 0
    tls: bool = False
    master: str | None = None  # the name sentinels know it by
    ca: str | None = None
    sentinel_password: str | None = None
    queue_prefix: str | None = None

    def __str__(self) -> str:
        """Fit for a message: no password."""
        where = ",".join(f"{host}:{port}" for host, port in self.hosts)
        return f"redis at {where}" + (f" ({self.master})" if self.master else "")

    def context(self) -> ssl.SSLContext | None:
        if not self.tls:
            return None
        try:
            return ssl.create_default_context(cafile=self.ca)
        except (OSError, ssl.SSLError) as problem:
            raise SettingError(
                f"ca={self.ca} is no file of certificates ({problem}): name the authority's PEM"
            ) from None


def parse(url: str) -> Address:
    """The address a URL names; see OPTIONS for what may follow a `?`."""
    scheme, _, rest = url.partition("://")
    if scheme not in SCHEMES or not rest:
        raise SettingError(f"not a Redis URL: write {FORMS}")
    server = re.split("[/?]", rest, maxsplit=1)[0]  # by hand: there may be several hosts
    login, _, places = server.rpartition("@")
    parts = urlsplit(f"redis://host{rest[len(server) :]}")
    path = [unquote(part) for part in parts.path.split("/") if part]
    sentinel = scheme.endswith("+sentinel")
    if sentinel and not path:
        raise SettingError(f"the URL names sentinels and no master: write {FORMS}")
    master = path.pop(0) if sentinel else None
    usual = 26379 if sentinel else 6379
    hosts = tuple(_host(place, usual, rest) for place in (places or "localhost").split(","))
    query = {key: values[-1] for key, values in parse_qs(parts.query, keep_blank_values=True).items()}
    if unknown := sorted(set(query) - set(OPTIONS)):
        raise SettingError(f"a Redis URL has no option {unknown[0]!r}: there are {', '.join(OPTIONS)}")
    query = {key: value for key, value in query.items() if value}
    user, _, password = login.partition(":")
    return Address(
        hosts=hosts,
        user=unquote(user) or None,
        password=unquote(password) or None,
        db=_number(path[0] if path else query.get("db", "0"), "database"),
        tls=scheme.startswith("rediss"),
        master=master,
        ca=query.get("ca"),
        sentinel_password=query.get("sentinel_password"),
        queue_prefix=query.get("prefix"),
    )


def _host(place: str, port: int, rest: str) -> tuple[str, int]:
    if place.startswith("["):  # an IPv6 address
        host, _, given = place[1:].partition("]")
        given = given.lstrip(":")
    else:
        host, _, given = place.partition(":")
    given = given or str(port)
    if not given.isdecimal() or not 0 < int(given) < 65536:
        # A password with a slash in it breaks the URL in two, and stands where the port would: it is not to be shown.
        shown = "what stands after the host" if "@" in rest.partition(place)[2] else given
        raise SettingError(
            f"{shown} is not a port: one lies between 1 and 65535; a / or a ? in a password is written %2F or %3F; "
            f"write {FORMS}"
        )
    return host or "localhost", int(given)


def _number(text: str, what: str) -> int:
    if not text.isdecimal():
        raise SettingError(f"{text!r} is not a {what}: write {FORMS}")
    return int(text)
