"""CPU shares of the processes of a runner: on a busy machine they give way to the worker itself, which has 1024."""

from __future__ import annotations

import math
from collections.abc import Sequence

NORMAL_SHARES = 1024
_SHARE_OF_NICE = 1.25  # Linux gives a process 1.25 times the time of one that is nicer by one
_MAX_NICE = 19


def lower_priority(command: Sequence[str], shares: int) -> list[str]:
    """Return a command that runs with so many shares, as far as the nice values of the system express them."""
    nice = min(round(math.log(NORMAL_SHARES / max(shares, 1), _SHARE_OF_NICE)), _MAX_NICE)
    return ["nice", "-n", str(nice), *command] if nice > 0 else [*command]
