"""`client.blobs`."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence

from ..context.blob_data import HashedData
from ..context.blobs import Method, guess_type
from ..core.argument_checks import check_arguments
from ..core.blob_keys import check_content_type
from ..core.durations import Duration
from ..core.errors import BlobCorrupt
from ..ports.blobs import Blob, BlobData
from .connection import Connection
from .times import show_duration

KEY = "/api/_blobs/{}"


@check_arguments
class Blobs:
    """Blobs by key, in the blob store of the server."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def put(self, key: str, data: BlobData, *, content_type: str | None = None) -> Blob:
        """Put a blob at once, and return it. What the key held before is replaced.

        Args:
            key: Its name: parts of letters, digits and ._=+@- joined with "/", such as "reports/7.pdf".
            data: Bytes, text, an open binary file, a path, or an iterable of bytes, async or not.
            content_type: Its media type. Default: by the end of the key.
        """
        headers = {"content-type": check_content_type(content_type) or guess_type(key)}
        return await self._connection.send(
            "PUT", Blob, KEY, key, content=HashedData(data), headers=headers, read_timeout_s=None
        )

    async def get(self, key: str) -> bytes:
        """Return a blob as bytes. Secrets in JSON are redacted, as in every answer of the API.

        Args:
            key: Its name.
        """
        return b"".join([chunk async for chunk in self.stream(key)])

    async def stream(self, key: str) -> AsyncIterator[bytes]:
        """Yield a blob in chunks. Raise BlobCorrupt after the last one if it is damaged.

        Args:
            key: Its name.
        """
        digest = hashlib.sha256()
        async with self._connection.open_bytes(KEY, key) as answer:
            async for chunk in answer.aiter_bytes():
                digest.update(chunk)
                yield chunk
        expected = answer.headers.get("x-content-sha256")
        if expected is not None and digest.hexdigest() != expected:
            raise BlobCorrupt(f"blob {key!r} is damaged: its hash is not {expected[:12]}… as when it was put")

    async def info(self, key: str) -> Blob:
        """Return size, type and hash of a blob. Raise UnknownBlob if there is none.

        Args:
            key: Its name.
        """
        return await self._connection.get(Blob, "/api/_blob_info/{}", key)

    async def list(self, prefix: str = "", *, after: str | None = None, limit: int = 100) -> Sequence[Blob]:
        """Return blobs in the order of their keys, without their hashes.

        Args:
            prefix: Only keys that start with this.
            after: The key of the last blob of the page before.
            limit: Maximum number of blobs.
        """
        return await self._connection.get(
            tuple[Blob, ...], "/api/_blobs", prefix=prefix or None, after=after, limit=limit
        )

    async def delete(self, key: str) -> bool:
        """Delete a blob; return False if there was none.

        Args:
            key: Its name.
        """
        return (await self._connection.delete(dict[str, bool], KEY, key))["ok"]

    async def url(self, key: str, *, expires: Duration = "15m", method: Method = "GET") -> str:
        """Return a URL that works without a token until it expires: of the bucket, or of the HTTP API.

        Args:
            key: Name of the blob.
            expires: How long it works, at most 7 days.
            method: "GET" to read the blob, "PUT" to write it.
        """
        body = {"key": key, "expires": show_duration(expires), "method": method}
        return (await self._connection.post(dict[str, str], "/api/_blob_urls", **body))["url"]
