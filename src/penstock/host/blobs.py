"""`ctx.blob` in a child process: the worker has the blob store, and gets and sends parts of blobs."""

from __future__ import annotations

import queue
from base64 import b64decode, b64encode
from collections.abc import AsyncIterable, AsyncIterator, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ..context.blob_data import read_chunks, split_chunks
from ..context.blobs import Method, SyncBlobView
from ..core.blob_keys import check_blob_key, check_content_type
from ..core.durations import Duration
from ..core.errors import BadArgument
from ..core.text import shorten
from ..ports.blobs import Blob, BlobData
from ..ports.frames import BLOB_PART_BYTES, BlobClose, BlobDelete, BlobInfo, BlobPut, BlobRead, BlobUrl, Request
from .calls import Attempt, to_span

if TYPE_CHECKING:
    from .context import HostChannel

T = TypeVar("T")


class HostBlobs:
    """The blobs of one attempt."""

    def __init__(self, channel: HostChannel, attempt: Attempt) -> None:
        self._channel = channel
        self._attempt = attempt

    async def _ask(self, request: Request) -> Any:
        self._channel.check()
        return await self._attempt.ask(request)

    async def put(self, key: str, data: BlobData, *, content_type: str | None = None) -> Blob:
        check_blob_key(key)
        parts = self._split(data)

        def read_part(_: Any) -> Any:
            part = _encode_next(parts)
            return part if self._attempt.loop is not None else block_on(part)

        inbox: queue.SimpleQueue[Any] | None = queue.SimpleQueue() if self._attempt.loop is None else None
        number = self._attempt.add_function("ctx.blob.put", read_part, inbox, is_data=True)
        return msgspec.convert(await self._ask(BlobPut(key, number, check_content_type(content_type))), Blob)

    def _split(self, data: BlobData) -> AsyncIterator[bytes]:
        if self._attempt.loop is not None:
            return split_chunks(read_chunks(data), BLOB_PART_BYTES)
        if isinstance(data, AsyncIterable):
            raise BadArgument("a blob of a `def` handler cannot be an async iterable; make the handler async")
        return split_chunks(read_chunks(data, _call_here), BLOB_PART_BYTES)

    async def get(self, key: str) -> bytes:
        return b"".join([part async for part in self.stream(key)])

    async def stream(self, key: str) -> AsyncIterator[bytes]:
        found = await self._ask(BlobRead(check_blob_key(key)))
        try:
            while found["part"] is not None:
                yield b64decode(found["part"])
                found = await self._ask(BlobRead(key, found["read"]))
        finally:
            if found["part"] is not None and self._attempt.stop is None and not self._channel.is_over:
                self._attempt.wire.send(BlobClose(found["read"]))

    async def info(self, key: str) -> Blob:
        return msgspec.convert(await self._ask(BlobInfo(check_blob_key(key))), Blob)

    async def delete(self, key: str) -> bool:
        return bool(await self._ask(BlobDelete(check_blob_key(key))))

    async def url(self, key: str, *, expires: Duration = "15m", method: Method = "GET") -> str:
        return str(
            await self._ask(
                BlobUrl(check_blob_key(key), to_span(expires), method if isinstance(method, str) else shorten(method))
            )
        )


class HostSyncBlobs(SyncBlobView):
    """The blobs of a `def` handler."""

    def _wait(self, work: Any) -> Any:
        return block_on(work)


def block_on(call: Coroutine[Any, Any, T]) -> T:
    """Return the value of a coroutine that blocks instead of yielding."""
    try:
        call.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise AssertionError("a call of a `def` handler yielded")


async def _call_here(function: Any, *args: Any) -> Any:
    return function(*args)


async def _encode_next(parts: AsyncIterator[bytes]) -> str | None:
    part = await anext(parts, None)
    return None if part is None else b64encode(part).decode()
