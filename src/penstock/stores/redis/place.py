"""Where the server is that we talk to: the one in the URL, the one sentinels call master, or the one that a cluster has
sent us to. Shared by every connection of a store, so that one finding out is enough."""

from __future__ import annotations

import hiredis

from .address import Address
from .resp import Part, pack, word_of

Host = tuple[str, int]


class Place:
    """An address and what has been learnt of it since."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._moved: Host | None = None

    def __str__(self) -> str:
        return str(self.address)

    def candidates(self) -> list[Host]:
        """Whom to try, in turn. In a cluster every server of the URL knows who has our keys."""
        hosts = list(self.address.hosts)
        return hosts if self._moved is None else [self._moved, *hosts]

    def learn(self, reply: object, peer: Host) -> bool:
        """Whether a reply says that our keys are elsewhere; then the next connection goes there."""
        if not isinstance(reply, hiredis.HiredisError) or word_of(reply) != "MOVED":
            return False
        host, _, port = str(reply).split()[-1].rpartition(":")
        self._moved = (host or peer[0], int(port))  # no host: the one that was asked
        return True

    def is_left(self, reply: object) -> bool:
        """Whether a reply says that another server is the master now, so that this line is of no more use."""
        return isinstance(reply, hiredis.HiredisError) and word_of(reply) == "READONLY"

    def forget(self) -> None:
        """The place we were sent to does not answer: the servers of the URL know better."""
        self._moved = None

    def greeting(self, name: str) -> list[tuple[Part, ...]]:
        """What is said first on every connection; with sentinels also the question whether it is the master."""
        address, commands = self.address, list[tuple[Part, ...]]()
        if address.password is not None:
            login = (address.user, address.password) if address.user else (address.password,)
            commands.append(("AUTH", *login))
        commands += [("CLIENT", "SETNAME", name), ("SELECT", address.db)]
        if address.master:
            commands.append(("ROLE",))
        return commands

    def question(self) -> list[tuple[Part, ...]]:
        """What a sentinel is asked."""
        address, commands = self.address, list[tuple[Part, ...]]()
        if address.sentinel_password is not None:
            commands.append(("AUTH", address.sentinel_password))
        return [*commands, ("SENTINEL", "get-master-addr-by-name", address.master or "")]


def is_replica(reply: object) -> bool:
    """Whether ROLE says so. A sentinel may name a master that is one no longer."""
    return isinstance(reply, list) and bool(reply) and reply[0] in (b"slave", b"sentinel")


def packed(commands: list[tuple[Part, ...]]) -> bytes:
    return b"".join(map(pack, commands))
