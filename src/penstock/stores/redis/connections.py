"""The connections of a process to one Redis: for calls, for lease renewals, and for wake-ups."""

from __future__ import annotations

from ...core.ids import new_token
from .address import Address
from .connection import Client
from .lease_client import LeaseClient
from .pubsub import ChannelSubscription
from .topology import Topology


class Connections:
    """Three connections, opened when they are first needed. Stores with other keys on the same server may share them:
    every call names its keys, and every wake-up its channel. The last store that releases them closes them."""

    def __init__(self, address: Address) -> None:
        name = f"penstock-{new_token()}"
        self.topology = Topology(address)
        self.client = Client(self.topology, name)
        self.lease_client = LeaseClient(self.topology, name)
        self.subscription = ChannelSubscription(self.topology, self._reconnect)
        self._users = 0
        self.is_closed = False

    def acquire(self) -> None:
        """Count one more store that uses them."""
        self._users += 1

    async def release(self) -> None:
        """Count one store less; the last one closes them."""
        self._users = max(self._users - 1, 0)
        if not self._users:
            self.is_closed = True
            await self.subscription.stop()
            await self.client.close()
            self.lease_client.close()

    def drop_unused(self) -> None:
        """Close the connection for calls after a store could not be opened, unless other stores use it."""
        if not self._users:
            self.client.drop()

    def _reconnect(self) -> None:
        self.client.drop()
        self.lease_client.reconnect()
