"""From a URL to a store."""

from __future__ import annotations

import os
import re
from urllib.parse import parse_qsl, unquote

from ..core.clock import Clock
from ..core.errors import SettingError
from ..ports.store import Store

FORMS = (
    "sqlite:///file.db (relative), sqlite:////absolute/file.db, sqlite://:memory:, "
    "redis://host:6379/0 or postgresql://user@host:5432/database"
)
POSTGRES = ("postgresql", "postgres")
REDIS = ("redis", "rediss", "redis+sentinel", "rediss+sentinel")


def open_store(url: str, *, clock: Clock, namespace: str) -> Store:
    """The store a URL names; opening it is the caller's."""
    scheme = url.partition(":")[0].lower() if ":" in url else ""
    if url in (":memory:", "memory:", "memory://") or scheme == "sqlite":
        from ..stores.sqlite import SqliteStore

        return SqliteStore(sqlite_path(url), clock=clock, namespace=namespace, read_only=reads_only(url))
    if scheme in REDIS:
        try:
            from ..stores.redis import RedisStore
        except ModuleNotFoundError as problem:
            raise SettingError(
                f"a Redis store needs the package {problem.name}: pip install 'penstock[redis]'"
            ) from None

        return RedisStore(url, clock=clock, namespace=namespace)
    if scheme in POSTGRES:
        try:
            from ..stores.postgres import PostgresStore
        except ModuleNotFoundError as problem:
            raise SettingError(
                f"a Postgres store needs the package {problem.name}: pip install 'penstock[postgres]'"
            ) from None

        return PostgresStore(url, clock=clock, namespace=namespace)
    raise SettingError(f"{mask(url)!r} is not a store this version can open: write {FORMS}")


def sqlite_path(url: str) -> str:
    """The file of a sqlite URL."""
    rest = url.partition(":")[2] if url.startswith("sqlite:") else ":memory:"
    rest = rest.removeprefix("//")
    if rest in (":memory:", "/:memory:"):
        return ":memory:"
    _sqlite_mode(url)
    path = unquote(rest.partition("?")[0]).removeprefix("/")
    if not path:
        raise SettingError(f"{url!r} names no file: write {FORMS}")
    return path


def looking_url(url: str) -> str:
    """A URL to look at a store by: a SQLite file that may not be written is only read."""
    if not url.startswith("sqlite:") or reads_only(url) or (path := sqlite_path(url)) == ":memory:":
        return url
    return url if may_write(path) or not os.path.exists(path) else f"{url.partition('?')[0]}?mode=ro"


def reads_only(url: str) -> bool:
    """Whether a URL asks for a SQLite file that is not written."""
    return url.startswith("sqlite:") and _sqlite_mode(url) == "ro"


def may_write(path: str) -> bool:
    """Whether a SQLite file can be written here: it, and the log and its index, which its folder must take if they are
    not there."""
    beside = [f"{path}-wal", f"{path}-shm"]
    folder = [] if all(map(os.path.exists, beside)) else [os.path.dirname(path) or "."]
    return all(os.access(one, os.W_OK) for one in (path, *filter(os.path.exists, beside), *folder))


def _sqlite_mode(url: str) -> str | None:
    """The one option there is."""
    options = dict(parse_qsl(url.partition("?")[2], keep_blank_values=True))
    mode = options.pop("mode", None)
    if options or mode not in (None, "ro"):
        wrong = repr(next(iter(options))) if options else f"mode={mode}"  # a value may be a secret
        raise SettingError(
            f"a SQLite URL has no option {wrong}: there is mode=ro, which only reads; a ? in a file's name is written "
            "%3F"
        )
    return mode


def mask(url: str) -> str:
    """A URL fit for a message: no password."""
    url = re.sub(r"(?i)([?&][^=&]*(?:password|passwd|secret|token|sslkey)[^=&]*=)[^&#]+", r"\1***", url)
    # By hand: the parser refuses some URLs, and the message about those is where a password must not stand.
    return re.sub(r"(://[^/?#:@]*:)[^/]*(?=@)", r"\1***", url)
