"""Store URLs: open the store a URL names, and mask passwords for messages."""

from __future__ import annotations

import os
import re
from urllib.parse import parse_qsl, unquote

from ..core.clock import Clock
from ..core.errors import SettingError
from ..core.text import shorten
from ..ports.store import Store
from .shared_connections import SharedConnections

URL_FORMS = (
    "sqlite:///file.db (relative), sqlite:////absolute/file.db, sqlite://:memory:, "
    "redis://host:6379/0 or postgresql://user@host:5432/database"
)
POSTGRES_SCHEMES = ("postgresql", "postgres")
_OPTION = re.compile(r"([?&][^=&?]*+=)[^&#]+")
_SECRET = re.compile(r"(?i)password|passwd|secret|token|sslkey")
_LOGIN = re.compile(r"(://[^/?#:@]*:)[^/]*(?=@)")
REDIS_SCHEMES = ("redis", "rediss", "redis+sentinel", "rediss+sentinel")


def open_store(url: str, *, clock: Clock, namespace: str, shared: SharedConnections | None = None) -> Store:
    """Return the store a URL names. The caller opens it."""
    scheme = url.partition(":")[0].lower() if ":" in url else ""
    if url in (":memory:", "memory:", "memory://") or scheme == "sqlite":
        from ..stores.sqlite import SqliteStore

        return SqliteStore(sqlite_path(url), clock=clock, namespace=namespace, read_only=is_read_only(url))
    if scheme in REDIS_SCHEMES:
        try:
            from ..stores.redis import RedisStore
            from ..stores.redis.address import parse
        except ModuleNotFoundError as problem:
            raise SettingError(
                f"a Redis store requires the package {problem.name}; run `pip install 'penstock[redis]'`"
            ) from None

        redis = shared.redis(parse(url)) if shared is not None else None
        return RedisStore(url, clock=clock, namespace=namespace, connections=redis)
    if scheme in POSTGRES_SCHEMES:
        try:
            from ..stores.postgres import PostgresStore
            from ..stores.postgres.address import read_address
        except ModuleNotFoundError as problem:
            raise SettingError(
                f"a Postgres store requires the package {problem.name}; run `pip install 'penstock[postgres]'`"
            ) from None

        pool = shared.postgres(read_address(url)) if shared is not None else None
        return PostgresStore(url, clock=clock, namespace=namespace, pool=pool)
    raise SettingError(f"unsupported store URL {shorten(mask(url))}; use {URL_FORMS}")


def sqlite_path(url: str) -> str:
    """Return the file of a SQLite URL."""
    rest = url.partition(":")[2] if url.startswith("sqlite:") else ":memory:"
    rest = rest.removeprefix("//")
    if rest in (":memory:", "/:memory:"):
        return ":memory:"
    _sqlite_mode(url)
    path = unquote(rest.partition("?")[0]).removeprefix("/")
    if not path or "\0" in path:
        raise SettingError(f"store URL {shorten(url)} has no file name; use {URL_FORMS}")
    return path


def is_memory_url(url: str) -> bool:
    """Return whether a URL names a store in memory, which only the process that opened it can use."""
    return url in (":memory:", "memory:", "memory://") or (url.startswith("sqlite:") and sqlite_path(url) == ":memory:")


def readable_url(url: str) -> str:
    """Return a URL that opens a store as it is: a Postgres store is not migrated, and a SQLite file that this process
    may not write gets `mode=ro`."""
    if url.startswith(tuple(f"{scheme}:" for scheme in POSTGRES_SCHEMES)):
        return f"{url}{'&' if '?' in url else '?'}migrate=no"  # the last one counts
    if not url.startswith("sqlite:") or is_read_only(url) or (path := sqlite_path(url)) == ":memory:":
        return url
    return url if is_writable(path) or not os.path.exists(path) else f"{url.partition('?')[0]}?mode=ro"


def is_read_only(url: str) -> bool:
    """Return whether a URL opens a SQLite file read-only."""
    return url.startswith("sqlite:") and _sqlite_mode(url) == "ro"


def is_writable(path: str) -> bool:
    """Return whether this process may write a SQLite file, its `-wal` and its `-shm`, or create the latter two."""
    beside = [f"{path}-wal", f"{path}-shm"]
    folder = [] if all(map(os.path.exists, beside)) else [os.path.dirname(path) or "."]
    return all(os.access(one, os.W_OK) for one in (path, *filter(os.path.exists, beside), *folder))


def _sqlite_mode(url: str) -> str | None:
    """Return the `mode` option; raise for any other option."""
    options = dict(parse_qsl(url.partition("?")[2], keep_blank_values=True))
    mode = options.pop("mode", None)
    if options or mode not in (None, "ro"):
        wrong = shorten(next(iter(options))) if options else f"mode={(mode or '')[:20]}"  # a value may be a secret
        raise SettingError(
            f"unknown option {wrong} in a SQLite URL; the only option is mode=ro (read-only). Use %3F for a ? in "
            "a file name"
        )
    return mode


def shown_url(url: str) -> str:
    """Return a URL for messages: without passwords, and without what `readable_url` may have added."""
    return mask(re.sub(r"[?&](migrate=no|mode=ro)$", "", url))


def mask(url: str) -> str:
    """Return a URL for messages, without passwords."""
    # Not by urlsplit: it refuses some URLs, and error messages about those must not contain a password either.
    url = _OPTION.sub(_mask_option, url)
    return _LOGIN.sub(r"\1***", url)


def _mask_option(found: re.Match[str]) -> str:
    return f"{found[1]}***" if _SECRET.search(found[1]) else found[0]
