"""What must hold of every history, whatever happened while it was made: one pure function for every layer of tests.

    history = await read_history(store, effects=log.read(), acknowledged=ids)
    assert check(history) == []

Steps run at least once and are recorded exactly once; a worker that lost its lease can record nothing.
"""

from .checker import check
from .facts import Effect, History, RunHistory, Trigger, Violation
from .reader import read_history

__all__ = ["Effect", "History", "RunHistory", "Trigger", "Violation", "check", "read_history"]
