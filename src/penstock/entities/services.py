"""Where the data of entities is: in Penstock's own store, or in storage of the user's."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar, runtime_checkable

T = TypeVar("T")


@runtime_checkable
class EntityService(Protocol[T]):
    """Storage of the user's for entities of one type. Each method may be `def` or `async def`.

    The order is: load, conditions and actions, `update`, then Penstock's commit. A crash between the last two repeats
    the event with the same `key`. Remember the key in the transaction of `update`, and return it from `applied`: then
    the event is not applied twice.
    """

    def new(self, urn: str) -> T | Awaitable[T]:
        """Return a new entity, in the initial state."""
        ...

    def load(self, urn: str) -> T | Awaitable[T | None] | None:
        """Return the entity, or None if there is none."""
        ...

    def update(self, entity: T, status: str, key: str) -> Any:
        """Save the entity with its new status, and remember the key, in one transaction."""
        ...

    def status(self, entity: T) -> str:
        """Return the status of an entity."""
        ...

    def urn(self, entity: T) -> str:
        """Return the urn of an entity."""
        ...


@runtime_checkable
class RemembersKeys(Protocol):
    """Storage that remembers the key of the last event it applied to an entity."""

    def applied(self, urn: str, key: str) -> bool | Awaitable[bool]:
        """Return whether `update` was committed with this key."""
        ...


@runtime_checkable
class CopiesEntities(Protocol[T]):
    """Storage that can copy an entity. Without it, an entity whose event was rejected is loaded again."""

    def copy(self, entity: T) -> T:
        """Return a copy that later changes of the entity leave alone."""
        ...


class FunctionService:
    """Storage made of two functions. The entity is a mapping with its `status` in it.

    Args:
        load: A function of the urn; it returns the entity, or None.
        update: A function of the entity, its new status and the key of the event; it saves the entity.
        new: A function of the urn that returns a new entity. Default: `{"urn": urn, "status": None}`.
        status: A function of the entity. Default: its key or attribute `status`.
        urn: A function of the entity. Default: its key or attribute `urn`.
        applied: A function of the urn and a key; it returns whether the key was saved. Default: no key is known.
    """

    def __init__(
        self,
        load: Callable[[str], Any],
        update: Callable[..., Any],
        *,
        new: Callable[[str], Any] | None = None,
        status: Callable[[Any], str] | None = None,
        urn: Callable[[Any], str] | None = None,
        applied: Callable[[str, str], Any] | None = None,
    ) -> None:
        self.load = load
        self.update = update
        self.new = new or (lambda urn: {"urn": urn, "status": None})
        self.status = status or (lambda entity: _read(entity, "status"))
        self.urn = urn or (lambda entity: _read(entity, "urn"))
        if applied is not None:
            self.applied = applied

    def copy(self, entity: Any) -> Any:
        """Return a deep copy of an entity."""
        return copy.deepcopy(entity)


def _read(entity: Any, name: str) -> Any:
    return entity[name] if isinstance(entity, dict) else getattr(entity, name)
