"""What can be put as a blob, read as chunks while its size and its hash are counted."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, BinaryIO, cast

from ..core.errors import BadArgument
from ..core.text import has_lone_surrogate, shorten
from ..ports.blobs import BlobData

CHUNK_BYTES = 2**20
Call = Callable[..., Awaitable[Any]]


class HashedData:
    """The chunks of a blob. `size` and `sha256` are complete when all of them are read."""

    def __init__(self, data: BlobData) -> None:
        self._chunks = read_chunks(data)
        self._hash = hashlib.sha256()
        self.size = 0

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in split_chunks(self._chunks, CHUNK_BYTES):
            self._hash.update(part)
            self.size += len(part)
            yield part


async def split_chunks(chunks: AsyncIterator[Any], size: int) -> AsyncIterator[bytes]:
    """Yield chunks in parts of at most `size` bytes: a chunk of a gigabyte would be copied whole."""
    async for chunk in chunks:
        content = _check_chunk(chunk)
        for start in range(0, len(content), size):
            yield content[start : start + size]


def read_chunks(data: BlobData, call: Call = asyncio.to_thread) -> AsyncIterator[Any]:
    """Return the chunks of anything that can be put. Raise BadArgument for anything else.

    `call` awaits a function that may block."""
    if isinstance(data, str):
        if has_lone_surrogate(data):
            raise BadArgument(f"a blob must be valid text or bytes, got a lone surrogate in {shorten(data)}")
        return _one(data.encode())
    if isinstance(data, bytes | bytearray | memoryview):
        return _one(bytes(data))
    if isinstance(data, os.PathLike):
        return _read_path(data, call)
    if isinstance(data, AsyncIterable):
        return aiter(data)
    if hasattr(data, "read"):
        return _read_file(cast(BinaryIO, data), call)
    if isinstance(data, Iterable) and not isinstance(data, dict):
        return _iterate(data, call)
    raise BadArgument(f"a blob is bytes, text, an open file, a path or an iterable of bytes, got {shorten(data)}")


async def _one(content: bytes) -> AsyncIterator[bytes]:
    yield content


async def _read_path(path: os.PathLike[str], call: Call) -> AsyncIterator[bytes]:
    file = await call(open, path, "rb")
    try:
        async for chunk in _read_file(file, call):
            yield chunk
    finally:
        await call(file.close)


async def _read_file(file: BinaryIO, call: Call) -> AsyncIterator[bytes]:
    while chunk := await call(file.read, CHUNK_BYTES):
        yield chunk


async def _iterate(chunks: Iterable[bytes], call: Call) -> AsyncIterator[bytes]:
    """Iterate on a thread: the caller's iterator may block."""
    iterator, end = iter(chunks), object()
    while (chunk := await call(next, iterator, end)) is not end:
        yield chunk


def _check_chunk(chunk: Any) -> bytes:
    if isinstance(chunk, bytes):
        return chunk
    if isinstance(chunk, bytearray | memoryview):
        return bytes(chunk)
    raise BadArgument(f"the chunks of a blob must be bytes, got {shorten(chunk)}; open files in binary mode")
