"""Signed URLs of blobs: those of a bucket, or of the HTTP API's own route."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from urllib.parse import quote, urlencode

from ..commit.committer import CommitRequest, Committer
from ..core.clock import Clock
from ..core.durations import Duration, to_ms
from ..core.errors import BadArgument, BadBlobUrl, ConfigError
from ..core.text import shorten
from ..ports.blobs import ObjectStore
from ..ports.store import State
from ..ports.unit import StateWrite, Unit

PATH = "/api/blobs/"
SECRET_KEY = "blob/secret"  # noqa: S105
MAX_EXPIRES_MS = 7 * 86_400_000  # the most that S3 signs
METHODS = ("GET", "PUT")


class BlobUrls:
    """Makes and checks signed URLs. All processes on a store share one secret, which the first of them makes."""

    def __init__(
        self,
        store: State,
        committer: Committer,
        clock: Clock,
        new_unit_id: Callable[[], str],
        public_url: str,
        is_on: bool,
    ) -> None:
        self._store = store
        self._committer = committer
        self._clock = clock
        self._unit_id = new_unit_id
        self._public_url = public_url.rstrip("/")
        self._is_on = is_on
        self._secret: bytes | None = None

    async def make(self, objects: ObjectStore, path: str, key: str, expires: Duration, method: str) -> str:
        """Return a URL for one method on one blob."""
        self._check_on()
        if not isinstance(method, str) or method not in METHODS:
            raise BadArgument(f"method must be 'GET' or 'PUT', got {shorten(method)}")
        expires_ms = to_ms(expires)
        if not 1000 <= expires_ms <= MAX_EXPIRES_MS:
            raise BadArgument(f"expires must be from 1s to 7d, got {shorten(expires)}")
        if (url := await objects.sign(method, path, expires_ms // 1000)) is not None:
            return url
        due = (self._clock.now_ms() + expires_ms) // 1000
        query = {"expires": due, "signature": _sign(await self._load_secret(), method, key, due)}
        return f"{self._public_url}{PATH}{quote(key)}?{urlencode(query)}"

    async def check(self, method: str, key: str, expires: int, signature: str) -> None:
        """Raise BadBlobUrl unless this is the signature of a URL that has not expired."""
        self._check_on()
        right = _sign(await self._load_secret(), method, key, expires)
        if not hmac.compare_digest(right.encode(), signature.encode("utf-8", "replace")):
            raise BadBlobUrl("the signature of this URL is wrong; ask for a new URL")
        if expires * 1000 <= self._clock.now_ms():
            raise BadBlobUrl("this URL has expired; ask for a new one")

    def _check_on(self) -> None:
        if not self._is_on:
            raise ConfigError("signed URLs of blobs are turned off; set blob_signed_urls to on")

    async def _load_secret(self) -> bytes:
        if self._secret is None:
            row = await self._store.state(SECRET_KEY)
            if row is None:
                import secrets  # it loads libraries for cryptography

                write = StateWrite(SECRET_KEY, b'"%b"' % secrets.token_hex(32).encode(), expect=0)
                unit = Unit(self._unit_id(), state=[write])
                await self._committer.submit(CommitRequest(lambda _v, _r: unit))  # refused if another one was first
                row = await self._store.state(SECRET_KEY)
                assert row is not None
            self._secret = row.value
        return self._secret


def _sign(secret: bytes, method: str, key: str, expires: int) -> str:
    return hmac.new(secret, f"{method}\n{key}\n{expires}".encode(), hashlib.sha256).hexdigest()
