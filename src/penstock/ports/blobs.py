"""The blob store port: objects by path, and what a blob is for those who put and get it."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable
from os import PathLike
from typing import BinaryIO, Protocol, runtime_checkable

import msgspec

from .unit import Claim

BlobData = bytes | bytearray | memoryview | str | BinaryIO | PathLike[str] | Iterable[bytes] | AsyncIterable[bytes]
"""What can be put: bytes, text, an open binary file, a path, or chunks."""


class Blob(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A blob, as lists show it.

    Attributes:
        key: Its name.
        size: In bytes.
        content_type: Its media type.
        sha256: Its hash, in hex; None in a list, and if another program has put it.
        modified_at: When it was put.
    """

    key: str
    size: int
    content_type: str
    sha256: str | None = None
    modified_at: str | None = None


class ObjectFacts(msgspec.Struct, frozen=True):
    """An object of the blob store. The tag changes whenever the object is written."""

    path: str
    size: int
    modified_ms: int
    tag: str | None = None


class ObjectReader(Protocol):
    """An object that is being read."""

    @property
    def facts(self) -> ObjectFacts: ...

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the bytes in chunks."""
        ...


class ObjectStore(Protocol):
    """Where blobs are kept: memory, a folder, or a bucket. Paths are relative to its base and are checked before.

    Every method raises BlobUnavailable if the server does not answer.
    """

    async def put(self, path: str, data: bytes | AsyncIterable[bytes], content_type: str | None = None) -> str | None:
        """Write an object, durable when this returns, and return its tag. Readers see the old one or the new one."""
        ...

    async def open(self, path: str) -> ObjectReader | None:
        """Start to read an object; None if there is none."""
        ...

    async def head(self, path: str) -> ObjectFacts | None:
        """Return the facts of an object; None if there is none."""
        ...

    async def delete(self, path: str) -> None:
        """Delete an object, if it exists."""
        ...

    async def list(self, prefix: str, *, after: str | None = None, limit: int = 100) -> list[ObjectFacts]:
        """Return objects whose path starts with the prefix, in the order of their paths."""
        ...

    async def sign(self, method: str, path: str, expires_s: int) -> str | None:
        """Return a URL that allows one method on one object for a time; None if the store has no URLs of its own."""
        ...


@runtime_checkable
class LoadsClaims(Protocol):
    """A store whose claims may have references in place of large values."""

    @property
    def lifts_limits(self) -> bool:
        """Whether values may be larger than the limits of the store: large ones become blobs."""
        ...

    async def load_claim(self, claim: Claim) -> Claim:
        """Return a claim with its values. Raise BlobUnavailable if one cannot be read now."""
        ...
