"""`penstock blobs list|put|get|info|url|delete`."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec
from cyclopts import App as Commands
from cyclopts import Parameter

from ...ports.blobs import Blob
from ..errors import EXIT_FAILED, UsageError, warn
from ..options import COMMON_DEFAULTS, CommonOptions
from ..output import Yes, confirm
from ..parse import read_delay, read_limit
from ..session import build_store_app
from ..tables import print_result, print_rows

blobs = Commands(name="blobs", help="The blob store: files and other large data, in the place that blob_url names.")


@blobs.command(name="list")
@blobs.default
def list_blobs(
    prefix: str = "",
    /,
    *,
    after: Annotated[str | None, Parameter(help="Only keys after this key.")] = None,
    limit: Annotated[int, Parameter(help="Maximum number of rows.")] = 100,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """List blobs with their sizes.

    Parameters
    ----------
    prefix
        Only keys with this prefix.
    """
    most = read_limit(limit)

    async def find() -> list[Blob]:
        async with build_store_app(common) as app:
            return list(await app.blobs.list(prefix, after=after, limit=most))

    found = asyncio.run(find())
    rows = [_show(blob) for blob in found]
    print_rows(rows, ("key", "size", "contentType", "modifiedAt"), json=common.json, empty="No blobs.")
    if len(found) == most:
        warn(f"There may be more blobs. The next page: --after {shlex.quote(found[-1].key)}")
    return 0


@blobs.command
def put(
    key: str,
    file: Annotated[str, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    content_type: Annotated[str | None, Parameter(help="Media type. Default: by the end of the key.")] = None,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Put a file as a blob. What the key held before is replaced.

    Parameters
    ----------
    key
        The key, such as reports/7.pdf.
    file
        The file; - is standard input.
    """
    source: Path | BinaryIO = sys.stdin.buffer if file == "-" else Path(file)
    if isinstance(source, Path) and not source.is_file():
        raise UsageError(f"no file {file!r}; pass the path of a file, or - for standard input")

    async def send() -> Blob:
        async with build_store_app(common) as app:
            return await app.blobs.put(key, source, content_type=content_type)

    blob = asyncio.run(send())
    print_result(f"{key} has {blob.size:,} bytes.", _show(blob), json=common.json)
    return 0


@blobs.command
def get(key: str, file: str = "-", /, *, common: CommonOptions = COMMON_DEFAULTS) -> int:
    """Write a blob to a file or to standard output, as it is: nothing is redacted, except by a server.

    Parameters
    ----------
    key
        The key.
    file
        The file to write; - is standard output.
    """

    async def receive() -> int:
        async with build_store_app(common) as app:
            return await _save(app.blobs.stream(key), file)

    size = asyncio.run(receive())
    if file != "-":
        print_result(f"{file} has {size:,} bytes.", {"key": key, "file": file, "size": size}, json=common.json)
    return 0


@blobs.command
def info(key: str, /, *, common: CommonOptions = COMMON_DEFAULTS) -> int:
    """Print size, type and hash of a blob.

    Parameters
    ----------
    key
        The key.
    """

    async def find() -> Blob:
        async with build_store_app(common) as app:
            return await app.blobs.info(key)

    shown = _show(asyncio.run(find()))
    print_result("\n".join(f"{name}: {value}" for name, value in shown.items()), shown, json=common.json)
    return 0


@blobs.command
def url(
    key: str,
    /,
    *,
    expires: Annotated[str, Parameter(help="How long the URL works: 15m, 1d; at most 7d.")] = "15m",
    write: Annotated[
        bool, Parameter(negative="", help="A URL to write the blob with PUT, instead of reading it.")
    ] = False,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Print a URL that works without a token until it expires.

    Parameters
    ----------
    key
        The key.
    """
    read_delay(expires, "--expires")

    async def sign() -> str:
        async with build_store_app(common) as app:
            return await app.blobs.url(key, expires=expires, method="PUT" if write else "GET")

    signed = asyncio.run(sign())
    print_result(signed, {"key": key, "url": signed}, json=common.json)
    return 0


@blobs.command
def delete(key: str, /, *, yes: Yes = False, common: CommonOptions = COMMON_DEFAULTS) -> int:
    """Delete a blob.

    Parameters
    ----------
    key
        The key.
    """
    if not confirm(f"Delete {key}?", yes):
        return EXIT_FAILED

    async def remove() -> bool:
        async with build_store_app(common) as app:
            await app.blobs.info(key)  # raises if there is none
            return await app.blobs.delete(key)

    asyncio.run(remove())
    print_result(f"{key} is deleted.", {"key": key, "deleted": True}, json=common.json)
    return 0


async def _save(chunks: AsyncIterator[bytes], file: str) -> int:
    """Write chunks to a file, which is there whole or not at all."""
    size, target = 0, Path(file)
    part = target.with_name(f"{target.name}.part")
    out = sys.stdout.buffer if file == "-" else None
    try:
        with part.open("wb") if out is None else _Unclosed(out) as destination:
            async for chunk in chunks:
                destination.write(chunk)
                size += len(chunk)
        if out is None:
            part.replace(target)
    except BaseException:
        if out is None:
            part.unlink(missing_ok=True)
        raise
    return size


class _Unclosed:
    """Standard output, which stays open."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def __enter__(self) -> BinaryIO:
        return self._file

    def __exit__(self, *_: object) -> None:
        self._file.flush()


def _show(blob: Blob) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.to_builtins(blob)
    return shown
