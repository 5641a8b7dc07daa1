"""Objects in a folder or a bucket, through the library obstore."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from datetime import timedelta
from heapq import nsmallest
from pathlib import Path
from typing import Any, TypeVar

import obstore
from obstore.exceptions import BaseError

from ..core.errors import BadArgument, BlobUnavailable
from ..ports.blobs import ObjectFacts

T = TypeVar("T")
CHUNK_BYTES = 8 * 2**20  # of an upload in parts; S3 takes at most 10,000 parts, so an object has at most 80 GB
READ_BYTES = 2**20
PARTS_AT_ONCE = 2  # a stream needs about this many chunks of memory
LIST_PAGE = 1000
_ADDRESS = re.compile(r"https?://\S+")


class Objects:
    """An object store behind obstore, below a folder of its own."""

    def __init__(self, store: Any, folder: str, *, is_sorted: bool = True, can_sign: bool = True) -> None:
        self._store = store
        self._folder = folder
        self._is_sorted = is_sorted  # whether it lists objects in the order of their paths
        self._can_sign = can_sign

    async def put(self, path: str, data: bytes | AsyncIterable[bytes], content_type: str | None = None) -> str | None:
        source = data if isinstance(data, bytes) else await _Source.read(data)
        options = {"attributes": {"Content-Type": content_type}} if content_type is not None and self._can_sign else {}
        try:
            written: Any = await self._ask(
                "put",
                path,
                lambda: obstore.put_async(
                    self._store,
                    self._at(path),
                    source,
                    chunk_size=CHUNK_BYTES,
                    max_concurrency=PARTS_AT_ONCE,
                    **options,  # type: ignore[arg-type]
                ),
            )
        except Exception:
            if isinstance(source, _Source) and source.problem is not None:
                raise source.problem from None  # what the caller's own chunks raised
            raise
        return str(written["e_tag"]) if written["e_tag"] is not None else None

    async def open(self, path: str) -> Reader | None:
        try:
            found: Any = await self._ask("get", path, lambda: obstore.get_async(self._store, self._at(path)))
        except FileNotFoundError:
            return None
        return Reader(path, found, self._facts(found.meta))

    async def head(self, path: str) -> ObjectFacts | None:
        try:
            return self._facts(await self._ask("head", path, lambda: obstore.head_async(self._store, self._at(path))))
        except FileNotFoundError:
            return None

    async def delete(self, path: str) -> None:
        try:
            await self._ask("delete", path, lambda: obstore.delete_async(self._store, self._at(path)))
        except FileNotFoundError:
            pass

    async def list(self, prefix: str, *, after: str | None = None, limit: int = 100) -> list[ObjectFacts]:
        folder, _, _ = prefix.rpartition("/")
        pages = obstore.list(
            self._store,
            self._at(folder),
            offset=None if after is None or not self._is_sorted else self._at(after),
            chunk_size=LIST_PAGE,
        )
        found: list[ObjectFacts] = []
        while page := await self._next_page(prefix, pages):
            facts = (self._facts(one) for one in page)
            found += [one for one in facts if one.path.startswith(prefix) and (after is None or one.path > after)]
            if self._is_sorted and len(found) >= limit:
                break
        return nsmallest(limit, found, key=lambda one: one.path)

    async def sign(self, method: str, path: str, expires_s: int) -> str | None:
        if not self._can_sign:
            return None
        duration = timedelta(seconds=expires_s)
        signing = obstore.sign_async
        return str(await self._ask("sign", path, lambda: signing(self._store, method, self._at(path), duration)))  # type: ignore[call-overload]

    async def _next_page(self, prefix: str, pages: Any) -> Any:
        return await self._ask("list", prefix, lambda: anext(pages, None))

    def _at(self, path: str) -> str:
        return f"{self._folder}/{path}" if path else self._folder

    def _facts(self, meta: Any) -> ObjectFacts:
        modified = round(meta["last_modified"].timestamp() * 1000)
        return ObjectFacts(meta["path"].removeprefix(f"{self._folder}/"), meta["size"], modified, meta["e_tag"])

    async def _ask(self, verb: str, path: str, call: Callable[[], Awaitable[T]]) -> T:
        try:
            return await call()
        except FileNotFoundError as problem:
            if verb in ("put", "list"):  # there is no bucket of that name
                raise unavailable(verb, path, problem) from None
            raise
        except (BaseError, OSError, ValueError, NotImplementedError) as problem:
            raise unavailable(verb, path, problem) from None


class Reader:
    """One object that is being read."""

    def __init__(self, path: str, found: Any, facts: ObjectFacts) -> None:
        self.facts = facts
        self._path = path
        self._found = found

    async def __aiter__(self) -> AsyncIterator[bytes]:
        chunks = self._found.stream(min_chunk_size=READ_BYTES)
        while True:
            try:
                chunk = await anext(chunks, None)
            except (BaseError, OSError, ValueError) as problem:
                raise unavailable("get", self._path, problem) from None
            if chunk is None:
                return
            yield bytes(chunk)


class Folder(Objects):
    """Objects as files of a folder of this machine."""

    def __init__(self, root: Path, folder: str) -> None:
        from obstore.store import LocalStore

        root.mkdir(parents=True, exist_ok=True)
        self._root = root.resolve()
        super().__init__(LocalStore(self._root, mkdir=True), folder, is_sorted=False, can_sign=False)

    async def put(self, path: str, data: bytes | AsyncIterable[bytes], content_type: str | None = None) -> str | None:
        await asyncio.to_thread(_check_place, self._root / self._folder, path)
        tag = await super().put(path, data, content_type)
        # A file that a commit refers to must survive a power loss, as the commit does.
        await asyncio.to_thread(_sync, self._root / self._folder / path, self._root)
        return tag

    async def _ask(self, verb: str, path: str, call: Callable[[], Awaitable[T]]) -> T:
        """A link in the folder may lead out of it: follow none that does."""
        if not (self._root / self._folder / path).resolve().is_relative_to(self._root):
            raise unavailable(verb, path, ValueError("a symbolic link leads out of the folder"))
        return await super()._ask(verb, path, call)


def _check_place(folder: Path, path: str) -> None:
    """Raise BadArgument if a file would have to be a folder too."""
    file = folder / path
    taken = next((one for one in file.parents if one.is_file()), file if file.is_dir() else None)
    if taken is not None:
        key, other = path.partition("/")[2], taken.relative_to(folder).as_posix().partition("/")[2]
        what = "is a blob" if taken != file else "has blobs below it"
        raise BadArgument(f"blob {key!r} cannot be a file, because {other!r} {what}; choose another key")


def _sync(file: Path, root: Path) -> None:
    """Flush a file and the folders that lead to it."""
    for path in (file, *file.parents):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        if path == root:
            return


class _Source:
    """Chunks of the caller. An exception of theirs is kept: the library would wrap it."""

    def __init__(self, first: bytes, chunks: AsyncIterator[bytes]) -> None:
        self._first: bytes | None = first
        self._chunks = chunks
        self.problem: BaseException | None = None

    @classmethod
    async def read(cls, data: AsyncIterable[bytes]) -> bytes | _Source:
        """Read the first part. A small object is written by one request, which needs no parts."""
        chunks, parts, size = aiter(data), [], 0
        async for chunk in chunks:
            parts.append(chunk)
            size += len(chunk)
            if size >= CHUNK_BYTES:
                return cls(b"".join(parts), chunks)
        return b"".join(parts)

    def __aiter__(self) -> _Source:
        return self

    async def __anext__(self) -> bytes:
        if self._first is not None:
            first, self._first = self._first, None
            return first
        try:
            return await anext(self._chunks)
        except StopAsyncIteration:
            raise
        except BaseException as problem:
            self.problem = problem
            raise


def unavailable(verb: str, path: str, problem: Exception) -> BlobUnavailable:
    """Build the error of a call that the blob store did not answer, with the first line of the library's text."""
    reason = _ADDRESS.sub("the server", (str(problem).strip() or type(problem).__name__).splitlines()[0])[:300]
    return BlobUnavailable(f"the blob store cannot {verb} {path!r}: {reason}; check blob_url and that it answers")
