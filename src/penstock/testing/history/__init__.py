"""The rules that hold for every history, whatever happened while it was made. One pure function for all test layers.

    history = await read_history(store, effects=log.read(), acknowledged=ids)
    assert check(history) == []

Steps run at least once and are recorded exactly once; a worker that lost its lease cannot record anything.
"""

from .checker import check
from .records import Effect, History, RunHistory, Trigger, Violation, read_history

__all__ = ["Effect", "History", "RunHistory", "Trigger", "Violation", "check", "read_history"]
