"""Signatures of calls: HMAC-SHA256 over `id.timestamp.body`, as in Standard Webhooks."""

from __future__ import annotations

import base64
import hashlib
import hmac

from .errors import BadSignature

TOLERANCE_S = 300


def sign(secret: str, id: str, timestamp: int, body: bytes) -> str:
    """Return the signature of a call, `v1,<base64>`."""
    signed = f"{id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(_key(secret), signed, hashlib.sha256).digest()).decode()


def verify(secret: str, id: str, timestamp: int, body: bytes, signatures: str, now: int) -> None:
    """Raise BadSignature unless one of the signatures is valid and the timestamp is recent."""
    if abs(now - timestamp) > TOLERANCE_S:
        raise BadSignature(
            f"the signed timestamp is off by {abs(now - timestamp)} s; the limit is {TOLERANCE_S} s. Sign every "
            "call with the current time, and check the clocks"
        )
    expected = sign(secret, id, timestamp, body).encode()
    matches = [hmac.compare_digest(expected, signature.encode()) for signature in signatures.split()]
    if True not in matches:
        raise BadSignature(
            "the signature does not match the body; check the secret, and that nothing changed the body in transit"
        )


def _key(secret: str) -> bytes:
    """Return the key bytes of a secret: base64 after `whsec_`, the text itself otherwise."""
    if secret.startswith("whsec_"):
        return base64.b64decode(secret.removeprefix("whsec_"))
    return secret.encode()
