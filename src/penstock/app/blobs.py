"""`app.blobs`: files and other large data in the blob store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from ..context.blobs import BlobView, Method
from ..core.argument_checks import check_arguments
from ..core.durations import Duration
from ..ports.blobs import Blob, BlobData


@check_arguments
class Blobs:
    """Blobs by key, the same as `ctx.blob` in handlers. The setting `blob_url` says where they are."""

    def __init__(self, view: BlobView) -> None:
        self._view = view

    async def put(self, key: str, data: BlobData, *, content_type: str | None = None) -> Blob:
        """Put a blob at once, and return it. What the key held before is replaced.

        Args:
            key: Its name: parts of letters, digits and ._=+@- joined with "/", such as "reports/7.pdf".
            data: Bytes, text, an open binary file, a path, or an iterable of bytes, async or not.
            content_type: Its media type. Default: by the end of the key.
        """
        return await self._view.put(key, data, content_type=content_type)

    async def get(self, key: str) -> bytes:
        """Return a blob as bytes. Raise UnknownBlob if there is none, BlobCorrupt if it is damaged.

        Args:
            key: Its name.
        """
        return await self._view.get(key)

    async def stream(self, key: str) -> AsyncIterator[bytes]:
        """Yield a blob in chunks of about 1 MB. Raise BlobCorrupt after the last one if it is damaged.

        Args:
            key: Its name.
        """
        async for chunk in self._view.stream(key):
            yield chunk

    async def info(self, key: str) -> Blob:
        """Return size, type and hash of a blob. Raise UnknownBlob if there is none.

        Args:
            key: Its name.
        """
        return await self._view.info(key)

    async def list(self, prefix: str = "", *, after: str | None = None, limit: int = 100) -> Sequence[Blob]:
        """Return blobs in the order of their keys, without their hashes.

        Args:
            prefix: Only keys that start with this.
            after: The key of the last blob of the page before.
            limit: Maximum number of blobs.
        """
        return await self._view.page(prefix, after, limit)

    async def delete(self, key: str) -> bool:
        """Delete a blob; return False if there was none.

        Args:
            key: Its name.
        """
        return await self._view.delete(key)

    async def url(self, key: str, *, expires: Duration = "15m", method: Method = "GET") -> str:
        """Return a URL that works without a token until it expires: of the bucket, or of the HTTP API.

        Args:
            key: Name of the blob.
            expires: How long it works, at most 7 days.
            method: "GET" to read the blob, "PUT" to write it.
        """
        return await self._view.url(key, expires=expires, method=method)
