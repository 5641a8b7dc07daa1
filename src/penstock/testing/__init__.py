"""What tests are made with: an App that skips time, a ctx without an App, a clock that stands still, waiting without
sleeping, contracts for stores."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# Not when it is first used, as the others: it is also the name of its module, and would be taken for that.
from .until import until

if TYPE_CHECKING:
    from .clock import FakeClock
    from .crashes import Crashed
    from .fake_context import FakeContext
    from .replay import replay
    from .test_app import TestApp

__all__ = ["Crashed", "FakeClock", "FakeContext", "TestApp", "replay", "until"]

_PLACES = {
    "Crashed": ".crashes",
    "FakeClock": ".clock",
    "FakeContext": ".fake_context",
    "TestApp": ".test_app",
    "replay": ".replay",
}


def __getattr__(name: str) -> Any:
    """Imports a name when it is first used: pytest loads the plugin beside it in every project."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_PLACES[name], __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
