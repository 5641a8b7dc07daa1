"""Finds the Redis server that holds our keys: the one in the URL, the master that sentinels name, or a cluster node.

All connections of a store share one Topology, so that one redirect serves them all.
"""

from __future__ import annotations

from typing import Any

import hiredis

from .address import Address, Host, moved_to
from .resp import Part, word_of


class Topology:
    """The address of a store and where its server is now."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._node: Host | None = None  # the cluster node of our slot

    def __str__(self) -> str:
        return str(self.address)

    # Clusters

    def candidates(self) -> list[Host]:
        """Return the servers to try, in turn. In a cluster every server of the URL knows which node has our keys."""
        hosts = list(self.address.hosts)
        return hosts if self._node is None else [self._node, *hosts]

    def follow_move(self, reply: object, peer: Host) -> bool:
        """Return whether a reply names another node for our keys; the next connection goes there."""
        if not isinstance(reply, hiredis.HiredisError):
            return False
        node = moved_to(str(reply), peer[0])
        if node is not None:
            self._node = node
        return node is not None

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
