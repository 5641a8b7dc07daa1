"""Options of a circuit breaker of the executor of a node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import msgspec

from ..core.errors import BadArgument, DefinitionError
from ..core.options import Milliseconds, read_options
from ..core.text import shorten
from .handler import _rate_key_text, _value_at

BreakerKey = str | Callable[[Any, Any], Any]
"""A dotted path, such as `"config.host"` or `"input.shop"`, or a function of the input and the config."""


class BreakerOptions(msgspec.Struct, frozen=True):
    """When a circuit breaker opens, for how long, and for which calls.

    Attributes:
        failures: It opens after this many failures in a row. Permanent failures do not count: the service answered.
        open_for_ms: How long no call is made. Then one call probes.
        key: Each value of this key has a breaker of its own.
    """

    failures: int = 5
    open_for_ms: int = 30_000
    key: BreakerKey | None = None

    def make_key(self, input: Any, config: Any) -> str:
        """Return the key of a call; an empty text without `key`."""
        if self.key is None:
            return ""
        if callable(self.key):
            try:
                return _rate_key_text(self.key(input, config))
            except Exception as problem:
                raise BadArgument(f"the key function of the breaker failed: {problem!r}") from problem
        return _rate_key_text(_value_at({"input": input, "config": config}, self.key))


class _Given(msgspec.Struct):
    failures: Annotated[int, msgspec.Meta(ge=1)] = 5
    open_for: Milliseconds | None = None
    key: Any = None


BreakerOption = BreakerOptions | Mapping[str, Any]


def read_breaker(value: Any) -> BreakerOptions | None:
    """Read `breaker`. Raise DefinitionError if a value is wrong."""
    if value is None or isinstance(value, BreakerOptions):
        return value
    if not isinstance(value, Mapping):
        raise DefinitionError(f'breaker must be a mapping such as {{"failures": 5}}, got {shorten(value)}')
    given = read_options(_Given, value, "breaker")
    key = given.key
    if key is not None and not callable(key) and (not isinstance(key, str) or key.split(".")[0] not in _ROOTS):
        raise DefinitionError(
            'the key of a breaker must be a path such as "config.host" or "input.shop", or a function of input and '
            f"config, got {shorten(key)}"
        )
    return BreakerOptions(given.failures, 30_000 if given.open_for is None else int(given.open_for), key)


_ROOTS = ("input", "config")
