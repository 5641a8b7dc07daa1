"""What every attempt of a worker uses."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass

from ..commit.committer import Committer
from ..core.clock import Clock
from ..ports.runner import Runner
from ..ports.store import Store


@dataclass(frozen=True, slots=True)
class AttemptServices:
    """The parts of a worker that its attempts share."""

    store: Store
    committer: Committer
    clock: Clock
    new_unit_id: Callable[[], str]
    runner: Runner
    rng: random.Random
    max_crashes: int
    loop: asyncio.AbstractEventLoop
