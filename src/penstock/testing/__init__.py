"""Tools for tests: an App that skips time, a ctx without an App, a fake clock, `until`, and contracts for stores."""

from typing import TYPE_CHECKING

from ..core.lazy_names import lazy_names

# Imported eagerly: a lazy `until` would resolve to the module of the same name.
from .until import until

if TYPE_CHECKING:
    from .clock import FakeClock
    from .crashes import Crashed
    from .fake_context import FakeContext
    from .run_replay import replay
    from .test_app import TestApp
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "Crashed": ".crashes",
            "FakeClock": ".clock",
            "FakeContext": ".fake_context",
            "TestApp": ".test_app",
            "replay": ".run_replay",
        },
    )

__all__ = ["Crashed", "FakeClock", "FakeContext", "TestApp", "replay", "until"]
