"""Parse a Postgres URL into our options and those of the driver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from ...core.errors import SettingError
from ...core.near_match import did_you_mean
from ...core.text import shorten

OWN_OPTIONS = ("schema", "pool", "pooling", "migrate")
# The driver passes every other option to the server, as a setting of the session.
DRIVER_OPTIONS = (
    "host", "port", "dbname", "database", "user", "password", "passfile", "service", "sslmode", "sslcert", "sslkey",
    "sslrootcert", "sslcrl", "sslpassword", "sslnegotiation", "ssl_min_protocol_version", "ssl_max_protocol_version",
    "target_session_attrs", "krbsrvname", "gsslib",
)  # fmt: skip
DEFAULT_POOL = 5
MAX_POOL = 10_000


@dataclass(frozen=True)
class Address:
    """Where the store is. `dsn` is what the driver receives."""

    dsn: str
    schema: str = "penstock"
    pool: int = DEFAULT_POOL  # connections for commits and reads; two more listen and renew leases
    pooled: bool = False  # behind a pooler in transaction mode: a session keeps nothing between transactions
    migrate: bool = True  # create or update the schema when the store is opened

    @property
    def max_connections(self) -> int:
        """The maximum number of connections of a process."""
        return self.pool + (1 if self.pooled else 2)  # one renews leases, one listens unless it is pooled

    @property
    def session(self) -> dict[str, str]:
        """The options that are settings of the server."""
        options = parse_qsl(urlsplit(self.dsn).query, keep_blank_values=True)
        return {name: value for name, value in options if name not in DRIVER_OPTIONS}

    @property
    def shown(self) -> str:
        """The address for messages, without password and options."""
        parts = urlsplit(self.dsn)
        hosts = parts.netloc.rpartition("@")[2] or "localhost"  # there may be several
        return f"postgresql://{hosts}{parts.path} (schema {self.schema})"


def read_address(url: str) -> Address:
    """Parse a URL such as `postgresql://user@host/db?schema=penstock&pool=5&pooling=transaction&migrate=no`."""
    try:
        parts = urlsplit(url)
    except ValueError as problem:  # do not show the URL: it may contain a password
        raise SettingError(f"invalid Postgres URL ({problem}); use postgresql://user@host:5432/database") from None
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    _check_ports(parts.netloc, options.get("port", ""), is_broken="@" in parts.path + parts.query)
    rest = {key: value for key, value in options.items() if key not in OWN_OPTIONS}
    dsn = urlunsplit(("postgresql", parts.netloc, parts.path, urlencode(rest), ""))
    try:
        pool = int(options.get("pool", DEFAULT_POOL))
    except ValueError:
        pool = 0
    if not 1 <= pool <= MAX_POOL:
        raise SettingError(
            f"pool must be a number of connections from 1 to {MAX_POOL:,}, got {shorten(options['pool'])}"
        )
    return Address(
        dsn,
        options.get("schema", "penstock"),
        pool,
        _choice(options, "pooling", {"session": False, "transaction": True}, "session"),
        _choice(options, "migrate", {"yes": True, "no": False}, "yes"),
    )


def _check_ports(netloc: str, option: str, *, is_broken: bool) -> None:
    """Check the ports early: the driver reports a wrong one late. A slash in a password splits the URL, and then the
    password stands where the port would: do not show it."""
    hosts = netloc.rpartition("@")[2].split(",")
    ports = [host.rpartition("]")[2].partition(":")[2] for host in hosts]  # an IPv6 address has colons of its own
    for port in (*ports, *option.split(",")):
        if port and not (port.isdecimal() and len(port) <= 5 and 0 < int(port) < 65536):
            shown = "the text after the host" if is_broken else shorten(port)
            raise SettingError(
                f"{shown} is not a port; use 1 to 65535, as in postgresql://user@host:5432/database. If it is part of "
                "a password, write / as %2F and ? as %3F"
            )


def _choice(options: dict[str, str], name: str, values: dict[str, bool], default: Literal["session", "yes"]) -> bool:
    value = options.get(name, default)
    if value not in values:
        raise SettingError(f"{name} must be {' or '.join(values)}, got {shorten(value)}")
    return values[value]


def unknown_option(name: str) -> SettingError:
    """Return the error for an option that neither we nor the driver nor the server knows."""
    own, driver = ", ".join(OWN_OPTIONS), ", ".join(DRIVER_OPTIONS)
    hint = did_you_mean(name, (*OWN_OPTIONS, *DRIVER_OPTIONS))
    start = f"{hint} Use" if hint else "use"
    return SettingError(
        f"unknown option {shorten(name)} in a Postgres URL; {start} an option of Penstock ({own}) or of the driver "
        f"({driver}), or a setting of the server such as statement_timeout"
    )
