"""`ctx.blob`: files and other large data in the blob store."""

from __future__ import annotations

import asyncio
import hashlib
import mimetypes
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any, Literal, TypeVar

import msgspec

from ..core.blob_keys import check_blob_key, check_blob_prefix, check_content_type
from ..core.clock import to_iso
from ..core.durations import Duration
from ..core.errors import BlobCorrupt, BlobStoreMissing, UnknownBlob
from ..core.payload import DECODE_ERRORS
from ..ports.blobs import Blob, BlobData, ObjectFacts, ObjectReader, ObjectStore
from .blob_data import HashedData
from .blob_urls import BlobUrls

T = TypeVar("T")
FILES, RECORDS = "files/", "records/"
ANY_TYPE = "application/octet-stream"
MAX_RECORD_BYTES = 4096
Method = Literal["GET", "PUT"]


class BlobRecord(msgspec.Struct, frozen=True):
    """What the blob store does not keep of an object, for the object with this tag."""

    tag: str | None
    size: int
    type: str
    sha256: str


_decode = msgspec.json.Decoder(BlobRecord).decode


class BlobView:
    """Blobs by key. A key holds what was put last; nothing removes a blob but `delete`."""

    def __init__(self, objects: ObjectStore | None, urls: BlobUrls | None = None) -> None:
        self._store = objects
        self._urls = urls

    @property
    def objects(self) -> ObjectStore:
        """The blob store. Raise BlobStoreMissing if this process has none."""
        if self._store is None:
            raise BlobStoreMissing(
                "this process has no blob store; set blob_url, such as file:.penstock/blobs or s3://bucket/path, and "
                "install 'penstock[blobs]'"
            )
        return self._store

    @property
    def is_configured(self) -> bool:
        """Whether this process has a blob store."""
        return self._store is not None

    async def put(self, key: str, data: BlobData, *, content_type: str | None = None) -> Blob:
        """Put a blob at once, and return it. What the key held before is replaced.

        Args:
            key: Its name: parts of letters, digits and ._=+@- joined with "/", such as "reports/7.pdf".
            data: Bytes, text, an open binary file, a path, or an iterable of bytes, async or not.
            content_type: Its media type. Default: by the end of the key.
        """
        path, type_ = check_blob_key(key), check_content_type(content_type) or guess_type(key)
        objects, content = self.objects, HashedData(data)
        tag = await objects.put(FILES + path, content, type_)
        record = BlobRecord(tag, content.size, type_, content.sha256)
        await objects.put(RECORDS + path, msgspec.json.encode(record))
        return Blob(key, content.size, type_, content.sha256)

    async def get(self, key: str) -> bytes:
        """Return a blob as bytes. Raise UnknownBlob if there is none, BlobCorrupt if it is damaged.

        Args:
            key: Its name.
        """
        return b"".join([chunk async for chunk in self.stream(key)])

    async def stream(self, key: str) -> AsyncIterator[bytes]:
        """Yield a blob in chunks of about 1 MB. Raise BlobCorrupt after the last one if it is damaged.

        Args:
            key: Its name.
        """
        reader, record = await self.open(key)
        digest = hashlib.sha256()
        async for chunk in reader:
            digest.update(chunk)
            yield chunk
        if record is not None and digest.hexdigest() != record.sha256:
            raise BlobCorrupt(
                f"blob {key!r} is damaged: its hash is {digest.hexdigest()[:12]}…, not {record.sha256[:12]}… as when "
                "it was put; put it again"
            )

    async def info(self, key: str) -> Blob:
        """Return size, type and hash of a blob. Raise UnknownBlob if there is none.

        Args:
            key: Its name.
        """
        facts = await self.objects.head(FILES + check_blob_key(key))
        if facts is None:
            raise _unknown(key)
        return show_blob(facts, await self._read_record(facts))

    async def delete(self, key: str) -> bool:
        """Delete a blob; return False if there was none.

        Args:
            key: Its name.
        """
        objects = self.objects
        if await objects.head(FILES + check_blob_key(key)) is None:
            return False
        await objects.delete(RECORDS + key)
        await objects.delete(FILES + key)
        return True

    async def url(self, key: str, *, expires: Duration = "15m", method: Method = "GET") -> str:
        """Return a URL that works without a token until it expires: of the bucket, or of the HTTP API.

        Args:
            key: Name of the blob.
            expires: How long it works, at most 7 days.
            method: "GET" to read the blob, "PUT" to write it.
        """
        check_blob_key(key)
        objects = self.objects
        assert self._urls is not None
        return await self._urls.make(objects, FILES + key, key, expires, method)

    async def check_url(self, method: Method, key: str, expires: int, signature: str) -> None:
        """Raise BadBlobUrl unless this is the signature of a URL that has not expired."""
        assert self._urls is not None
        await self._urls.check(method, key, expires, signature)

    async def page(self, prefix: str = "", after: str | None = None, limit: int = 100) -> list[Blob]:
        """Return blobs in the order of their keys, without their hashes."""
        start = FILES + check_blob_prefix(prefix)
        last = None if after is None else FILES + check_blob_key(after)
        return [show_blob(facts, None) for facts in await self.objects.list(start, after=last, limit=limit)]

    async def open(self, key: str) -> tuple[ObjectReader, BlobRecord | None]:
        """Start to read a blob, with its record if that belongs to it."""
        reader = await self.objects.open(FILES + check_blob_key(key))
        if reader is None:
            raise _unknown(key)
        return reader, await self._read_record(reader.facts)

    async def _read_record(self, facts: ObjectFacts) -> BlobRecord | None:
        """Return the record of an object; None if it is that of another version, or another program put the object."""
        reader = await self.objects.open(RECORDS + facts.path.removeprefix(FILES))
        if reader is None or reader.facts.size > MAX_RECORD_BYTES:
            return None
        try:
            record = _decode(b"".join([chunk async for chunk in reader]))
        except DECODE_ERRORS:
            return None
        return record if record.tag == facts.tag and record.size == facts.size else None


class SyncBlobView:
    """The blobs of a `def` handler: calls block its thread until the answer is there."""

    def __init__(self, view: BlobView, loop: asyncio.AbstractEventLoop) -> None:
        self._view = view
        self._loop = loop

    def put(self, key: str, data: BlobData, *, content_type: str | None = None) -> Blob:
        """Put a blob at once, and return it. What the key held before is replaced.

        Args:
            key: Its name: parts of letters, digits and ._=+@- joined with "/", such as "reports/7.pdf".
            data: Bytes, text, an open binary file, a path, or an iterable of bytes.
            content_type: Its media type. Default: by the end of the key.
        """
        return self._wait(self._view.put(key, data, content_type=content_type))

    def get(self, key: str) -> bytes:
        """Return a blob as bytes. Raise UnknownBlob if there is none, BlobCorrupt if it is damaged.

        Args:
            key: Its name.
        """
        return self._wait(self._view.get(key))

    def stream(self, key: str) -> Iterator[bytes]:
        """Yield a blob in chunks of about 1 MB. Raise BlobCorrupt after the last one if it is damaged.

        Args:
            key: Its name.
        """
        chunks = self._view.stream(key)

        async def read() -> bytes | None:
            return await anext(chunks, None)

        while (chunk := self._wait(read())) is not None:
            yield chunk

    def info(self, key: str) -> Blob:
        """Return size, type and hash of a blob. Raise UnknownBlob if there is none.

        Args:
            key: Its name.
        """
        return self._wait(self._view.info(key))

    def delete(self, key: str) -> bool:
        """Delete a blob; return False if there was none.

        Args:
            key: Its name.
        """
        return self._wait(self._view.delete(key))

    def url(self, key: str, *, expires: Duration = "15m", method: Method = "GET") -> str:
        """Return a URL that works without a token until it expires: of the bucket, or of the HTTP API.

        Args:
            key: Name of the blob.
            expires: How long it works, at most 7 days.
            method: "GET" to read the blob, "PUT" to write it.
        """
        return self._wait(self._view.url(key, expires=expires, method=method))

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def show_blob(facts: ObjectFacts, record: BlobRecord | None) -> Blob:
    """Return what people see of an object."""
    key = facts.path.removeprefix(FILES)
    type_, sha256 = (record.type, record.sha256) if record is not None else (guess_type(key), None)
    return Blob(key, facts.size, type_, sha256, to_iso(facts.modified_ms))


def guess_type(key: str) -> str:
    """Return the media type that the end of a key stands for."""
    return mimetypes.guess_type(key)[0] or ANY_TYPE


def _unknown(key: str) -> UnknownBlob:
    return UnknownBlob(f"no blob {key!r}; `penstock blobs list` shows those that exist")
