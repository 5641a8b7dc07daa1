"""Parses a Redis URL: hosts, login, database and TLS."""

from __future__ import annotations

import re
import ssl
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from ...core.errors import SettingError
from ...core.text import shorten

FORMS = "redis://host:6379/0, rediss://user:password@host:6379/0 or redis+sentinel://host:26379,host:26379/name/0"
OPTIONS = {
    "ca": "file with the certificate authority of the server",
    "db": "database, if it is not in the path",
    "prefix": "prefix of BullMQ's keys",
    "sentinel_password": "password of the sentinels",
}
SCHEMES = ("redis", "rediss", "redis+sentinel", "rediss+sentinel")


Host = tuple[str, int]
_MOVED_TO = re.compile(r"MOVED [0-9]{1,5} (.*):([0-9]{1,5})")


def is_host(host: str, port: str) -> bool:
    """Return whether another server named an address that can be connected to."""
    is_port = port.isascii() and port.isdecimal() and 0 < int(port[:6]) < 65536
    return is_port and 0 < len(host) < 256 and host.isprintable() and " " not in host and "\ufffd" not in host


def moved_to(text: str, peer: str) -> Host | None:
    """Return the node that an error reply names for our keys, None for another error. It may leave out the host."""
    found = _MOVED_TO.fullmatch(text)
    if found is None or not is_host(found[1] or peer, found[2]):
        return None
    return found[1] or peer, int(found[2])


class Address(msgspec.Struct, frozen=True):
    """One server, the nodes of a cluster, or the sentinels that know the master."""

    hosts: tuple[tuple[str, int], ...]
    user: str | None = None
    password: str | None = None
    db: int = 0
    tls: bool = False
    master: str | None = None  # its name at the sentinels
    ca: str | None = None
    sentinel_password: str | None = None
    queue_prefix: str | None = None

    def __str__(self) -> str:
        """Return the hosts for a message, without the password."""
        where = ",".join(f"{host}:{port}" for host, port in self.hosts)
        return f"redis at {where}" + (f" ({self.master})" if self.master else "")

    @property
    def connection_key(self) -> tuple[object, ...]:
        """What two addresses have in common if their stores can share connections."""
        return msgspec.structs.astuple(msgspec.structs.replace(self, queue_prefix=None))

    def context(self) -> ssl.SSLContext | None:
        if not self.tls:
            return None
        try:
            return ssl.create_default_context(cafile=self.ca)
        except (OSError, ssl.SSLError) as problem:
            raise SettingError(
                f"ca={self.ca} is not a file of certificates ({problem}); use the PEM file of the certificate authority"
            ) from None


def parse(url: str) -> Address:
    """Parse a URL; OPTIONS lists what may follow a `?`."""
    scheme, _, rest = url.partition("://")
    if scheme not in SCHEMES or not rest:
        raise SettingError(f"invalid Redis URL; use {FORMS}")
    server = re.split("[/?]", rest, maxsplit=1)[0]  # urlsplit does not allow several hosts
    login, _, host_list = server.rpartition("@")
    parts = urlsplit(f"redis://host{rest[len(server) :]}")
    path = [unquote(part) for part in parts.path.split("/") if part]
    sentinel = scheme.endswith("+sentinel")
    if sentinel and not path:
        raise SettingError(f"the URL has sentinels but no name of a master; use {FORMS}")
    master = path.pop(0) if sentinel else None
    default_port = 26379 if sentinel else 6379
    hosts = tuple(_host(text, default_port, rest) for text in (host_list or "localhost").split(","))
    query = {key: values[-1] for key, values in parse_qs(parts.query, keep_blank_values=True).items()}
    if unknown := sorted(set(query) - set(OPTIONS)):
        raise SettingError(f"unknown option {unknown[0]!r} in a Redis URL; the options are {', '.join(OPTIONS)}")
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


def _host(text: str, default_port: int, rest: str) -> tuple[str, int]:
    if text.startswith("["):  # IPv6
        host, _, port = text[1:].partition("]")
        port = port.lstrip(":")
    else:
        host, _, port = text.partition(":")
    port = port or str(default_port)
    if not port.isdecimal() or len(port) > 5 or not 0 < int(port) < 65536:
        # A slash in a password splits the URL, and the password is read as the port: do not show it.
        shown = "the text after the host" if "@" in rest.partition(text)[2] else shorten(port)
        raise SettingError(
            f"{shown} is not a port between 1 and 65535; use {FORMS}. Use %2F or %3F for a / or ? in a password"
        )
    return host or "localhost", int(port)


def _number(text: str, what: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise SettingError(f"invalid {what} {shorten(text)}; use {FORMS}")
    return int(text)
