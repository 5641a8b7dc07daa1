"""Entities in a table that SQLAlchemy maps: one service for a `sessionmaker`, one for an `async_sessionmaker`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from sqlalchemy import inspect as inspect_mapping
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from ..core.errors import ConfigError, RunError
from ..core.near_match import did_you_mean
from ..core.text import shorten

T = TypeVar("T")


class _Table(Generic[T]):
    """A mapped class, and the attributes that Penstock reads and writes.

    Args:
        sessions: Makes the sessions. Each call has one of its own.
        model: The mapped class.
        urn: Name of the attribute with the urn. The column must be unique.
        status: Name of the attribute with the status.
        key: Name of the attribute that remembers the last event, a text of up to 200 characters that may be null. It
            makes a repeated event safe. None: the table has none, and an event may be applied twice after a crash.
        new: A function of a urn that returns a new object. Default: the model with its urn set.
    """

    def __init__(
        self,
        sessions: Any,
        model: type[T],
        *,
        urn: str = "urn",
        status: str = "status",
        key: str | None = "last_event",
        new: Callable[[str], T] | None = None,
    ) -> None:
        self._sessions = sessions
        self._model = model
        self._urn, self._status, self._key = urn, status, key
        self._make = new
        self._columns = _read_columns(model)
        for option, name in (("urn", urn), ("status", status), ("key", key)):
            if name is not None and name not in self._columns:
                hint = did_you_mean(name, self._columns) or f"its columns are {', '.join(self._columns)}"
                more = "; key=None does without" if option == "key" else ""
                raise ConfigError(f"{model.__name__} has no column {name!r} for {option}=: {hint}{more}")

    def new(self, urn: str) -> T:
        """Return a new object; `update` inserts it."""
        return self._make(urn) if self._make is not None else self._model(**{self._urn: urn})

    def status(self, entity: T) -> str:
        """Return the status of an object, None for a new one."""
        return getattr(entity, self._status)  # type: ignore[no-any-return]

    def urn(self, entity: T) -> str:
        """Return the urn of an object."""
        return getattr(entity, self._urn)  # type: ignore[no-any-return]

    def copy(self, entity: T) -> T:
        """Return a copy of the columns of an object."""
        return self._model(**{name: copy.deepcopy(getattr(entity, name)) for name in self._columns})

    def _find(self, urn: str) -> Any:
        return select(self._model).where(getattr(self._model, self._urn) == urn)

    def _prepare(self, found: T | None, entity: T, status: str, key: str) -> bool:
        """Set the status and the key. Return False if another attempt has applied the event meanwhile."""
        if self._key is not None:
            applied = getattr(found, self._key) if found is not None else None
            if applied == key:
                return False
            if applied != getattr(entity, self._key):
                raise RunError(f"entity {self.urn(entity)!r} was changed by another attempt; it is loaded again")
            setattr(entity, self._key, key)
        setattr(entity, self._status, status)
        return True

    def _is_applied(self, found: T | None, key: str) -> bool:
        return found is not None and self._key is not None and bool(getattr(found, self._key) == key)


def _read_columns(model: Any) -> list[str]:
    try:
        return [column.key for column in inspect_mapping(model).column_attrs]
    except Exception:
        raise ConfigError(f"model must be a class that SQLAlchemy maps, got {shorten(model)}") from None


class SQLAlchemyService(_Table[T]):
    __doc__ = _Table.__doc__

    _sessions: sessionmaker[Session]

    def load(self, urn: str) -> T | None:
        """Return the object with a urn, detached from its session."""
        with self._sessions() as session:
            found: T | None = session.scalars(self._find(urn)).one_or_none()
            return found

    def update(self, entity: T, status: str, key: str) -> None:
        """Save the object, its status and the key in one transaction."""
        with self._sessions.begin() as session:
            found = session.scalars(self._find(self.urn(entity)).with_for_update()).one_or_none()
            if self._prepare(found, entity, status, key):
                session.merge(entity)

    def applied(self, urn: str, key: str) -> bool:
        """Return whether the last update had this key."""
        return self._is_applied(self.load(urn), key)


class AsyncSQLAlchemyService(_Table[T]):
    __doc__ = _Table.__doc__

    _sessions: async_sessionmaker[AsyncSession]

    async def load(self, urn: str) -> T | None:
        """Return the object with a urn, detached from its session."""
        async with self._sessions() as session:
            found: T | None = (await session.scalars(self._find(urn))).one_or_none()
            return found

    async def update(self, entity: T, status: str, key: str) -> None:
        """Save the object, its status and the key in one transaction."""
        async with self._sessions.begin() as session:
            found = (await session.scalars(self._find(self.urn(entity)).with_for_update())).one_or_none()
            if self._prepare(found, entity, status, key):
                await session.merge(entity)

    async def applied(self, urn: str, key: str) -> bool:
        """Return whether the last update had this key."""
        return self._is_applied(await self.load(urn), key)
