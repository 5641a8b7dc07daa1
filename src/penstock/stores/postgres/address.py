"""What a Postgres URL says to us, and what it says to the driver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from ...core.errors import SettingError
from ...core.near_match import did_you_mean

OURS = ("schema", "pool", "pooling", "migrate")
# What the driver takes; it hands on whatever else there is, as settings of the session.
DRIVERS = (
    "host", "port", "dbname", "database", "user", "password", "passfile", "service", "sslmode", "sslcert", "sslkey",
    "sslrootcert", "sslcrl", "sslpassword", "sslnegotiation", "ssl_min_protocol_version", "ssl_max_protocol_version",
    "target_session_attrs", "krbsrvname", "gsslib",
)  # fmt: skip
MOST_CONNECTIONS = 5


@dataclass(frozen=True)
class Address:
    """Where the store is. `dsn` is what the driver is given."""

    dsn: str
    schema: str = "penstock"
    pool: int = MOST_CONNECTIONS  # connections for commits and reads; two more listen and renew leases
    pooled: bool = False  # behind a pooler that gives a connection for a transaction only: nothing is kept on it
    migrate: bool = True  # create or update the schema when it is opened

    @property
    def uses(self) -> int:
        """How many connections a process has at most."""
        return self.pool + (1 if self.pooled else 2)  # leases have one, and wake-ups where they are listened for

    @property
    def session(self) -> dict[str, str]:
        """Options that only the server can know: its settings."""
        given = parse_qsl(urlsplit(self.dsn).query, keep_blank_values=True)
        return {name: value for name, value in given if name not in DRIVERS}

    @property
    def shown(self) -> str:
        """For messages: no password, no options."""
        parts = urlsplit(self.dsn)
        hosts = parts.netloc.rpartition("@")[2] or "localhost"  # there may be several
        return f"postgresql://{hosts}{parts.path} (schema {self.schema})"


def read_address(url: str) -> Address:
    """Takes our options off a URL: `postgresql://user@host/db?schema=penstock&pool=5&pooling=transaction&migrate=no`."""
    try:
        parts = urlsplit(url)
    except ValueError as problem:  # it may not be shown: it may hold a password
        raise SettingError(f"not a Postgres URL ({problem}): write postgresql://user@host:5432/database") from None
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    _check_ports(parts.netloc, given.get("port", ""), broken="@" in parts.path + parts.query)
    rest = {key: value for key, value in given.items() if key not in OURS}
    dsn = urlunsplit(("postgresql", parts.netloc, parts.path, urlencode(rest), ""))
    try:
        pool = int(given.get("pool", MOST_CONNECTIONS))
    except ValueError:
        pool = 0
    if pool < 1:
        raise SettingError(f"pool={given['pool']} is not a number of connections: write 1 or more")
    return Address(
        dsn,
        given.get("schema", "penstock"),
        pool,
        _choice(given, "pooling", {"session": False, "transaction": True}, "session"),
        _choice(given, "migrate", {"yes": True, "no": False}, "yes"),
    )


def _check_ports(netloc: str, option: str, *, broken: bool) -> None:
    """The driver finds a wrong port late, and in words of its own. A password with a slash in it breaks the URL in two,
    and stands where the port would: it is not to be shown."""
    hosts = netloc.rpartition("@")[2].split(",")
    ports = [host.rpartition("]")[2].partition(":")[2] for host in hosts]  # an IPv6 address has colons of its own
    for port in (*ports, *option.split(",")):
        if port and not (port.isdecimal() and 0 < int(port) < 65536):
            shown = "what stands after the host" if broken else port
            raise SettingError(
                f"{shown} is not a port: one lies between 1 and 65535, as in postgresql://user@host:5432/database; a / "
                "or a ? in a password is written %2F or %3F"
            )


def _choice(given: dict[str, str], name: str, values: dict[str, bool], default: Literal["session", "yes"]) -> bool:
    value = given.get(name, default)
    if value not in values:
        raise SettingError(f"{name}={value} is not known: write {' or '.join(values)}")
    return values[value]


def unknown_option(name: str) -> SettingError:
    """For an option that neither we nor the driver nor the server has."""
    known = (*OURS, *DRIVERS)
    hint = did_you_mean(name, known)
    there = f"{hint} There" if hint else "there"
    return SettingError(
        f"a Postgres URL has no option {name!r}: {there} are {', '.join(OURS)}; the driver's {', '.join(DRIVERS)}; "
        "and the settings of the server, such as statement_timeout"
    )
