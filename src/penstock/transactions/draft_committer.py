"""Units that are made but not committed: someone's transaction is to carry them."""

from __future__ import annotations

from ..commit.committer import Intent
from ..ports.unit import Committed, Receipt, Unit


class Draft:
    """Takes intents as the committer does, and keeps what they ask for.

    Nothing is known of the store's present: what an intent is refused for later is what makes repeating it harmless (a
    run that exists, a key that was taken)."""

    def __init__(self) -> None:
        self.units: list[Unit] = []

    async def submit(self, intent: Intent) -> Receipt:
        built = intent.build(intent.version, intent.record)
        if not isinstance(built, Unit):
            return built
        self.units.append(built)
        # An event has no place in its stream yet, and whoever asks for it is told so.
        return Committed(repeated=built.run is None)
