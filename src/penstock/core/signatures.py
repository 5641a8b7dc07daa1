"""Signatures of calls: HMAC-SHA256 over `id.timestamp.body`, as in Standard Webhooks."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from .errors import BadArgument, BadSignature, SettingError
from .text import shorten

TOLERANCE_S = 300
MIN_KEY_BYTES = 24  # as Standard Webhooks requires
MAX_VALUE_CHARS = 4096  # of all signatures of a call
ID_HEADER, TIMESTAMP_HEADER, SIGNATURE_HEADER = "webhook-id", "webhook-timestamp", "webhook-signature"
KEY_COMMAND = """python -c "import base64, os; print('whsec_' + base64.b64encode(os.urandom(32)).decode())\""""
# Visible ASCII characters. The full stop ends the id in what is signed: with one inside, two calls could look the same.
_ID = re.compile(r"[!-\-/-~]{1,256}")
_SECONDS = re.compile(r"[0-9]{1,15}")
_MAX_SECONDS = 10**15


class Signature(msgspec.Struct, frozen=True):
    """The signature of a call in the form of Standard Webhooks, with the body that it covers."""

    id: str
    timestamp: int  # seconds since the epoch
    value: str  # `v1,<base64>`, several separated by spaces
    body: bytes  # as received: JSON that was parsed and encoded again may differ

    @property
    def headers(self) -> dict[str, str]:
        """The headers of a call with this signature."""
        return {ID_HEADER: self.id, TIMESTAMP_HEADER: str(self.timestamp), SIGNATURE_HEADER: self.value}

    @classmethod
    def from_headers(
        cls, headers: Mapping[str, str] | Iterable[tuple[str | bytes, str | bytes]], body: bytes
    ) -> Signature | None:
        """Read the signature of an HTTP call, or return None if the call has none of its headers.

        Args:
            headers: The call's headers: a mapping, or pairs as in ASGI. Case does not matter.
            body: The call's body as received.
        """
        found = read_headers(headers)
        missing = [name for name in (ID_HEADER, TIMESTAMP_HEADER, SIGNATURE_HEADER) if name not in found]
        if len(missing) == 3:
            return None
        if missing:
            raise BadSignature(
                f"the call has no header {' and no '.join(missing)}; a signed call has {ID_HEADER}, "
                f"{TIMESTAMP_HEADER} and {SIGNATURE_HEADER}"
            )
        seconds = found[TIMESTAMP_HEADER]
        if not _SECONDS.fullmatch(seconds):
            raise _bad_timestamp(seconds)
        return cls(found[ID_HEADER], int(seconds), found[SIGNATURE_HEADER], body)


def sign(secret: str, id: str, timestamp: int, body: bytes) -> str:
    """Return the signature of a call, `v1,<base64>`.

    Args:
        secret: The secret that both sides know: `whsec_` and at least 24 bytes in base64.
        id: Id of the call; for a trigger, the trigger's id.
        timestamp: The current time in seconds since the epoch.
        body: The bytes that are sent.
    """
    return sign_with(read_key(secret), id, timestamp, body)


def sign_with(key: bytes, id: str, timestamp: int, body: bytes) -> str:
    """Return the signature of a call by the bytes of the key."""
    if not isinstance(id, str) or not _ID.fullmatch(id):
        raise BadSignature(
            f"{ID_HEADER} must have 1 to 256 visible ASCII characters and no full stop, got {_shorten(id)}"
        )
    if type(timestamp) is not int or not 0 <= timestamp < _MAX_SECONDS:
        raise _bad_timestamp(timestamp)
    if not isinstance(body, bytes):
        raise BadArgument(f"the body of a signed call must be the bytes as received, got {_shorten(body)}")
    signed = f"{id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


def verify(key: bytes, signature: Signature, now: int) -> None:
    """Raise BadSignature unless one of the signatures is valid and the timestamp is recent."""
    expected = sign_with(key, signature.id, signature.timestamp, signature.body).encode()
    off = abs(now - signature.timestamp)
    if off > TOLERANCE_S:
        raise BadSignature(
            f"the signed timestamp is off by {off} s; the limit is {TOLERANCE_S} s. Sign every call with the current "
            "time, and check the clocks"
        )
    given = signature.value
    if not isinstance(given, str) or not given.isascii() or len(given) > MAX_VALUE_CHARS:
        raise BadSignature(
            f"the header {SIGNATURE_HEADER} must contain signatures of the form v1,<base64> with spaces between them, "
            f"at most {MAX_VALUE_CHARS:,} characters, got {_shorten(given)}"
        )
    # Compare with every signature, so that the time it takes reveals nothing.
    matches = [hmac.compare_digest(expected, one.encode()) for one in given.split()]
    if True not in matches:
        raise BadSignature(
            "the signature does not match the body; check the secret, and that nothing changed the body in transit"
        )


def read_key(secret: str, name: str = "the secret") -> bytes:
    """Return the key bytes of a secret: base64 after `whsec_`, the text itself otherwise. Errors show no part of it."""
    if not isinstance(secret, str):
        raise SettingError(f"{name} must be text, got a {type(secret).__name__}; make one with `{KEY_COMMAND}`")
    encoded = secret.removeprefix("whsec_")
    try:
        key = secret.encode() if encoded == secret else base64.b64decode(encoded, validate=True)
    except (UnicodeEncodeError, binascii.Error, ValueError):
        what = "is not valid text" if encoded == secret else "has whsec_ and then no valid base64"
        raise SettingError(f"{name} {what}; copy it in full, or make one with `{KEY_COMMAND}`") from None
    if len(key) < MIN_KEY_BYTES:
        raise SettingError(
            f"{name} is a key of {len(key)} bytes, which can be guessed; use at least {MIN_KEY_BYTES} bytes. "
            f"Make one with `{KEY_COMMAND}`"
        )
    return key


def _bad_timestamp(value: Any) -> BadSignature:
    return BadSignature(
        f"{TIMESTAMP_HEADER} must be the current time in whole seconds since the epoch, got {_shorten(value)}"
    )


def read_headers(headers: Any) -> dict[str, str]:
    """Return headers with lowercase names; those that are not text are left out."""
    try:
        pairs = [(name, value) for name, value in (headers.items() if hasattr(headers, "items") else headers)]
    except (TypeError, ValueError):
        raise BadArgument(f"headers must be a mapping of names to values, got {_shorten(headers)}") from None
    texts = [[part.decode("latin-1") if isinstance(part, bytes) else part for part in pair] for pair in pairs]
    return {name.lower(): value for name, value in texts if isinstance(name, str) and isinstance(value, str)}


def _shorten(value: Any) -> str:
    return shorten(value, 60)
