"""What an event does besides the update of the user's storage, saved before that update.

The user's database commits first, then Penstock. If the process dies between the two, the event is repeated. The
storage says that the update is there, and the actions do not run again: what they emitted, enqueued and wrote to the
state is then restored from here.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec

from ..context.context import Context
from ..core.errors import UnreadableRecord
from ..ports.unit import StateWrite
from ..worker.channel import WorkerChannel
from ..worker.outcomes import EmittedEvent, Launch
from .decide import Handled

PREFIX = "~update."  # of the memos; the last one is that of the update that was committed


class SavedUpdate(msgspec.Struct, frozen=True):
    """How an event ended, and what its actions did."""

    handled: Handled
    emitted: list[EmittedEvent]
    launched: list[Launch]
    state: list[StateWrite]


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(SavedUpdate).decode


async def save_update(ctx: Context, handled: Handled) -> None:
    """Commit what the attempt will record, so that a later attempt can record it instead."""
    channel = _channel(ctx)
    saved = SavedUpdate(handled, channel.emitted, channel.launched, list(channel.state_writes.values()))
    session = channel.session
    session.journal.add_memo(f"{PREFIX}{ctx.attempt:06d}", msgspec.Raw(_encode(saved)))
    await session.flush()


def restore_update(ctx: Context) -> Handled | None:
    """Restore what the last attempt that updated the storage has saved. Return None if it saved nothing."""
    channel = _channel(ctx)
    memos = {name: value for name, value in channel.work.claim.memos.items() if name.startswith(PREFIX)}
    if not memos:
        return None
    try:
        saved = _decode(memos[max(memos)])
    except msgspec.MsgspecError as problem:
        raise UnreadableRecord(f"cannot read what event {ctx.job_id!r} saved before its update: {problem}") from None
    channel.emitted += saved.emitted
    channel.launched += saved.launched
    channel.state_writes.update({write.key: write for write in saved.state})
    return msgspec.structs.replace(saved.handled, recovered=True)


def _channel(ctx: Any) -> WorkerChannel:
    return cast(WorkerChannel, ctx._channel)
