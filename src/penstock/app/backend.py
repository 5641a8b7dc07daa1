"""From a URL to a store."""

from __future__ import annotations

import re
from urllib.parse import unquote

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

        return SqliteStore(sqlite_path(url), clock=clock, namespace=namespace)
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
    path = unquote(rest.partition("?")[0]).removeprefix("/")
    if not path:
        raise SettingError(f"{url!r} names no file: write {FORMS}")
    return path


def mask(url: str) -> str:
    """A URL fit for a message: no password."""
    url = re.sub(r"(?i)([?&][^=&]*(?:password|passwd|secret|token|sslkey)[^=&]*=)[^&#]+", r"\1***", url)
    # By hand: the parser refuses some URLs, and the message about those is where a password must not stand.
    return re.sub(r"(://[^/?#:@]*:)[^/]*(?=@)", r"\1***", url)
