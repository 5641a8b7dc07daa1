"""Calls of an App with a blob store: values may be larger than the limits of the store."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from ..core.payload import lifted_limits


def lift_limits(facet: object) -> None:
    """Lift the limits inside the public calls of a facet. Without a blob store, nothing is wrapped."""
    for name in dir(type(facet)):
        if (not name.startswith("_") or name == "_start") and inspect.iscoroutinefunction(
            method := getattr(facet, name)
        ):
            setattr(facet, name, _lift(method))


def _lift(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    async def call(*args: Any, **options: Any) -> Any:
        if options.get("tx") is not None:  # it is written by the caller's connection, which uploads nothing
            return await method(*args, **options)
        with lifted_limits():
            return await method(*args, **options)

    return call
