"""Finds the Redis server that holds our keys: the one in the URL, the master that sentinels name, or a cluster node.

All connections of a store share one Topology, so that one discovery serves them all.
"""

from __future__ import annotations

from typing import Any

import hiredis
from redis import RedisError
from redis.asyncio.retry import Retry as AsyncRetry
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.backoff import NoBackoff
from redis.exceptions import MovedError
from redis.retry import Retry
from redis.sentinel import Sentinel

from ...core.errors import StoreError, StoreUnavailable
from .address import Address
from .resp import Part, word_of

SENTINEL_TIMEOUT_S = 1.0
Host = tuple[str, int]


class Topology:
    """The address of a store and where its server is now."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._node: Host | None = None  # the cluster node of our slot

    def __str__(self) -> str:
        return str(self.address)

    # Sentinels

    async def find_master(self) -> Host:
        """Ask the sentinels for the current master.

        Each call has its own connections: redis-py reorders its list of sentinels, and two calls at the same time would
        lose one of them.
        """
        options = self._sentinel_options() | {"retry": AsyncRetry(NoBackoff(), 0)}
        sentinel = AsyncSentinel(list(self.address.hosts), sentinel_kwargs=options)  # type: ignore[no-untyped-call]
        try:
            host, port = await sentinel.discover_master(self._master())
        except (RedisError, OSError) as problem:
            raise self._no_master(problem) from None
        finally:
            for client in sentinel.sentinels:
                await client.aclose()
        return str(host), int(port)

    def find_master_blocking(self) -> Host:
        """Ask the sentinels from a thread without an event loop."""
        options = self._sentinel_options() | {"retry": Retry(NoBackoff(), 0)}
        sentinel = Sentinel(list(self.address.hosts), sentinel_kwargs=options)  # type: ignore[no-untyped-call]
        try:
            host, port = sentinel.discover_master(self._master())  # type: ignore[no-untyped-call]
        except (RedisError, OSError) as problem:
            raise self._no_master(problem) from None
        finally:
            for client in sentinel.sentinels:
                client.close()
        return str(host), int(port)

    def _master(self) -> str:
        assert self.address.master is not None
        return self.address.master

    def _sentinel_options(self) -> dict[str, Any]:
        timeouts = {"socket_timeout": SENTINEL_TIMEOUT_S, "socket_connect_timeout": SENTINEL_TIMEOUT_S}
        return {"protocol": 2, "password": self.address.sentinel_password, **timeouts, **self._tls_options()}

    def _no_master(self, problem: Exception) -> StoreError:
        if "certificate verify failed" in str(problem):
            return StoreError(f"the certificate of {self} is not trusted ({problem}); pass its authority with ?ca=file")
        return StoreUnavailable(
            f"cannot find the master of {self} ({problem}); check that the sentinels are running and monitor a "
            "master of that name"
        )

    # Clusters

    def candidates(self) -> list[Host]:
        """Return the servers to try, in turn. In a cluster every server of the URL knows which node has our keys."""
        hosts = list(self.address.hosts)
        return hosts if self._node is None else [self._node, *hosts]

    def follow_move(self, reply: object, peer: Host) -> bool:
        """Return whether a reply names another node for our keys; the next connection goes there."""
        if isinstance(reply, MovedError):
            self._node = (reply.host or peer[0], int(reply.port))
            return True
        if isinstance(reply, hiredis.HiredisError) and word_of(reply) == "MOVED":
            return self.follow_move(MovedError(str(reply).partition(" ")[2]), peer)
        return False

    def forget_node(self) -> None:
        """Go back to the servers of the URL, because the node does not answer."""
        self._node = None

    # Connections

    def client_options(self, name: str, timeout_s: float) -> dict[str, Any]:
        """Return the options of a redis-py client. It neither retries nor times out before `timeout_s`."""
        address = self.address
        return {
            "username": address.user,
            "password": address.password,
            "db": address.db,
            "client_name": name,
            "protocol": 2,
            "socket_timeout": timeout_s,
            "socket_connect_timeout": timeout_s,
            **self._tls_options(),
        }

    def handshake(self, name: str) -> list[tuple[Part, ...]]:
        """Return the first commands of a connection; with sentinels, ROLE is the last one."""
        address, commands = self.address, list[tuple[Part, ...]]()
        if address.password is not None:
            login = (address.user, address.password) if address.user else (address.password,)
            commands.append(("AUTH", *login))
        commands += [("CLIENT", "SETNAME", name), ("SELECT", address.db)]
        if address.master:
            commands.append(("ROLE",))
        return commands

    def _tls_options(self) -> dict[str, Any]:
        return {"ssl": True, "ssl_ca_certs": self.address.ca} if self.address.tls else {}


def is_demoted(reply: object) -> bool:
    """Return whether a reply shows that the server is a replica now."""
    return isinstance(reply, hiredis.HiredisError) and word_of(reply) == "READONLY"


def is_replica(role: object) -> bool:
    """Return whether the reply to ROLE is not a master's. A sentinel may name a server that was demoted since."""
    return isinstance(role, list) and bool(role) and role[0] in (b"slave", b"sentinel")
