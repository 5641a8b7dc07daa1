"""`SharedConnections`: Apps of several namespaces in one process use the same connections to a server."""

from __future__ import annotations

import asyncio
from typing import Any


class SharedConnections:
    """The connections that Apps of several namespaces share.

        shared = SharedConnections()
        apps = [App(url, namespace=name, connections=shared) for name in names]

    On Redis, all Apps with the same server and login share three connections. On Postgres, all Apps with the same
    database and login share one pool; each App has two more connections, to listen and to renew leases. SQLite files
    have connections of their own. Only Apps on the same event loop share: each SyncApp has a loop of its own.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[Any, ...], Any] = {}

    def redis(self, address: Any) -> Any:
        """Return the connections to a Redis. RedisStore uses them."""
        from ..stores.redis.connections import Connections

        key = ("redis", asyncio.get_running_loop(), *address.connection_key)
        found = self._found.get(key)
        if found is None or found.is_closed:
            found = self._found[key] = Connections(address)
        return found

    def postgres(self, address: Any) -> Any:
        """Return the pool of a database. PostgresStore uses it."""
        from ..stores.postgres.connection import Pool

        key = ("postgres", asyncio.get_running_loop(), address.dsn, address.pool, address.pooled)
        found = self._found.get(key)
        if found is None or found.is_closed:
            found = self._found[key] = Pool(address.pool, is_shared=True)
        return found
