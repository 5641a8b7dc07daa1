"""Signed calls: HMAC-SHA256 over `id.timestamp.body`, as Standard Webhooks has it."""

from __future__ import annotations

import base64
import hashlib
import hmac

from .errors import BadSignature

TOLERANCE = 300  # seconds


def sign(secret: str, id: str, timestamp: int, body: bytes) -> str:
    """The signature of a call, `v1,<base64>`."""
    signed = f"{id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(_key(secret), signed, hashlib.sha256).digest()).decode()


def verify(secret: str, id: str, timestamp: int, body: bytes, signatures: str, now: int) -> None:
    """Raises BadSignature unless one of the signatures is right and the call is not old."""
    if abs(now - timestamp) > TOLERANCE:
        raise BadSignature(
            f"the signed time is {abs(now - timestamp)} s away, more than {TOLERANCE} s: sign each call anew and check "
            "the clocks"
        )
    expected = sign(secret, id, timestamp, body).encode()
    matches = [hmac.compare_digest(expected, given.encode()) for given in signatures.split()]
    if True not in matches:
        raise BadSignature(
            "the signature does not fit what was sent: check the secret, and that the body was not changed"
        )


def _key(secret: str) -> bytes:
    """Secrets that begin with `whsec_` are base64, others are taken as they are."""
    if secret.startswith("whsec_"):
        return base64.b64decode(secret.removeprefix("whsec_"))
    return secret.encode()
