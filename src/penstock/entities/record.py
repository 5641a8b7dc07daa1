"""The run record of an entity: its status, its data and the events that wait."""

from __future__ import annotations

import msgspec

from ..core.payload import NULL
from ..core.stored import read_stored

MAX_INLINE_EVENTS = 64
MAX_INLINE_BYTES = 32 * 1024


class Mail(msgspec.Struct, frozen=True, array_like=True):
    """An event that waits in the mailbox of an entity."""

    n: int
    event: str
    payload: msgspec.Raw = msgspec.Raw(NULL)
    trace: str | None = None  # the `traceparent` of what emitted it


class TakenMail(Mail, frozen=True, array_like=True):
    """An event that has a job, or several that are handled together: then `n` is the last one, `payload` a list."""

    count: int = 1

    @property
    def first(self) -> int:
        """The number of the first of them."""
        return self.n - self.count + 1


class EntityRecord(msgspec.Struct, omit_defaults=True, rename="camel"):
    """The state of an entity. At most one of its events has a job; the others wait here, in order of arrival.

    A long mailbox does not make every commit long: beyond a limit, waiting events are in the state, and a job reads
    the next ones.
    """

    type: str
    urn: str
    status: str
    queue: str
    created_ms: int
    data: msgspec.Raw = msgspec.Raw(NULL)
    received: int = 0  # the number of the last event that arrived
    current: int | None = None  # the number of the event that has a job
    mailbox: list[Mail] = []
    spilled: int = 0  # how many more wait in the state
    handled: int = 0  # events that ended, in any way
    single_until: int = 0  # up to this number, events are handled one by one: some of them failed together
    priority: int = 0
    closed: bool = False
    paused: bool = False
    paused_by: str | None = None

    @property
    def waiting(self) -> int:
        """How many events wait, besides the one that has a job."""
        return len(self.mailbox) + self.spilled

    @property
    def has_room(self) -> bool:
        """Whether the next event fits in the record. Once events are spilled, later ones follow them."""
        if self.spilled or len(self.mailbox) >= MAX_INLINE_EVENTS:
            return False
        return sum(len(bytes(mail.payload)) for mail in self.mailbox) < MAX_INLINE_BYTES

    @property
    def first_spilled(self) -> int:
        """The number of the first event that waits in the state."""
        return self.received - self.spilled + 1


encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(EntityRecord).decode
decode_mail = msgspec.json.Decoder(Mail).decode


def decode(data: bytes, id: str | None = None) -> EntityRecord:
    """Decode the record of an entity. Raise UnreadableRecord if it is damaged."""
    try:
        return _decode(data)
    except Exception:
        name = f"entity {id!r}" if id is not None else "the entity"
        return read_stored(_decode, data, f"the record of {name}", "restore it from a backup")


def mailbox_prefix(id: str) -> str:
    """Return the prefix of the state keys with waiting events. They are removed with the entity."""
    return f"run/{id}/mailbox/"


def mail_key(id: str, n: int) -> str:
    """Return the state key of a waiting event; keys sort by arrival."""
    return f"{mailbox_prefix(id)}{n:015d}"
