"""Tools for tests: an App that skips time, a ctx without an App, a fake clock, `until`, and contracts for stores."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# Imported eagerly: a lazy `until` would resolve to the module of the same name.
from .until import until

if TYPE_CHECKING:
    from .clock import FakeClock
    from .crashes import Crashed
    from .fake_context import FakeContext
    from .run_replay import replay
    from .test_app import TestApp

__all__ = ["Crashed", "FakeClock", "FakeContext", "TestApp", "replay", "until"]

_MODULES = {
    "Crashed": ".crashes",
    "FakeClock": ".clock",
    "FakeContext": ".fake_context",
    "TestApp": ".test_app",
    "replay": ".run_replay",
}


def __getattr__(name: str) -> Any:
    """Import a name on first use: pytest loads the plugin of this package in every project."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name], __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
