"""Serves `ctx.blob` of a handler in another process: blobs go over frames in parts, one at a time."""

from __future__ import annotations

import itertools
from base64 import b64decode, b64encode
from binascii import Error as BadBase64
from collections.abc import AsyncIterator
from typing import Any, cast

import msgspec

from ..context.blob_data import split_chunks
from ..context.blobs import BlobView, Method
from ..context.context import Context
from ..core.durations import ms_to_duration
from ..core.errors import BadArgument
from ..ports.frames import BLOB_PART_BYTES, BlobDelete, BlobInfo, BlobPut, BlobRead, BlobUrl
from ..ports.runner import Execute

BlobRequest = BlobPut | BlobRead | BlobInfo | BlobDelete | BlobUrl


class RemoteBlobs:
    """The blobs of one remote attempt."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._reads: dict[int, AsyncIterator[bytes]] = {}
        self._numbers = itertools.count(1)

    async def answer(self, request: BlobRequest, execute: Execute) -> Any:
        """Answer a request."""
        blobs = self._ctx.blob
        match request:
            case BlobPut(key, function, content_type):
                parts = _read_parts(execute, function)
                return msgspec.to_builtins(await blobs.put(key, parts, content_type=content_type))
            case BlobRead(key, read):
                return await self._read(blobs, key, read)
            case BlobInfo(key):
                return msgspec.to_builtins(await blobs.info(key))
            case BlobDelete(key):
                return await blobs.delete(key)
            case BlobUrl(key, expires_ms, method):
                options: Any = {} if expires_ms is None else {"expires": ms_to_duration(expires_ms)}
                return await blobs.url(key, method=cast(Method, method), **options)

    def close(self, read: int) -> None:
        """Read no further in a blob. The loop closes what nothing refers to."""
        self._reads.pop(read, None)

    async def _read(self, blobs: BlobView, key: str, read: int | None) -> dict[str, Any]:
        if read is None:
            read = next(self._numbers)
            self._reads[read] = split_chunks(blobs.stream(key), BLOB_PART_BYTES)
        parts = self._reads.get(read)
        part = None if parts is None else await anext(parts, None)
        if part is None:
            self.close(read)
        return {"read": read, "part": None if part is None else b64encode(part).decode()}


async def _read_parts(execute: Execute, function: int) -> AsyncIterator[bytes]:
    """Yield what the host's function returns, until that is null."""
    while (part := await execute(function, None)) is not None:
        try:
            yield b64decode(part, validate=True)
        except (TypeError, ValueError, BadBase64):
            raise BadArgument("a part of a blob must be text in base64") from None
