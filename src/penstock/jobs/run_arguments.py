"""What `ctx.run` is given: a name, then a function that has not been called. A slip is told in a sentence."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from ..core.errors import BadArgument

Run = TypeVar("Run", bound=Callable[..., Any])
_LIKE = 'ctx.run("charge", charge, 7)'


def with_name_and_function(method: Run) -> Run:
    """For a `run(self, name, fn, …)`: what is left out is named. Type checkers see the method as it is."""

    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        if len(args) < 3 and len(args) + ("name" in kwargs) + ("fn" in kwargs) < 3:
            raise _incomplete(args[1:])
        return method(*args, **kwargs)

    return cast(Run, call)


def check_run(name: Any, fn: Any) -> None:
    """A name and a function, in this order."""
    if not isinstance(name, str):
        raise BadArgument(f"ctx.run({_shown(name)}, …): give its name first, then the function: {_LIKE}")
    if callable(fn):
        return
    shown, like = _shown(fn), f"ctx.run({name!r}, charge, 7)"
    if inspect.iscoroutine(fn):
        fn.close()  # nobody will await it, and Python would complain of that instead
        raise BadArgument(
            f"ctx.run({name!r}, {shown}): this is called already, and would be called again by a handler that is run "
            f"again: give the function itself, then its arguments: ctx.run({name!r}, {fn.__name__}, …)"
        )
    raise BadArgument(
        f"ctx.run({name!r}, {shown}): give the function itself, then its arguments, so that it is called once: {like}"
    )


def _incomplete(given: tuple[object, ...]) -> BadArgument:
    if not given:
        return BadArgument(f"ctx.run(): give a name, a function and its arguments: {_LIKE}")
    if isinstance(given[0], str):
        return BadArgument(f"ctx.run({given[0]!r}): the function is missing, give it after the name: {_LIKE}")
    return BadArgument(f"ctx.run({_shown(given[0])}): the name is missing, give it before the function: {_LIKE}")


def _shown(value: object) -> str:
    """As it stands in the code, as far as that can be told."""
    if inspect.iscoroutine(value):
        return f"{value.__name__}(…)"
    name = getattr(value, "__name__", None) if callable(value) else None
    shown = name if isinstance(name, str) else repr(value)
    return shown if len(shown) <= 60 else f"{shown[:60]}…"
