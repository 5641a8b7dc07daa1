"""Signed calls of triggers: the secret, the body that is delivered, and the ids that were used."""

from __future__ import annotations

import hashlib
import hmac
import os
from typing import Any, Literal

import msgspec

from ..core.errors import BadArgument, BadSignature, TriggerError
from ..core.payload import pack, parse_json, to_plain
from ..core.signatures import TOLERANCE_S, Signature, read_key, sign_with, verify
from ..core.text import shorten
from ..ports.unit import StateWrite
from .wait_records import WaitBody

SignedId = Literal["trigger", "any"]
# Longer than a call is accepted: the clocks of two processes may differ.
ID_KEPT_S = 2 * TOLERANCE_S

_encode_sorted = msgspec.json.Encoder(order="sorted").encode


def check_signed(signed: Any, signed_id: Any) -> None:
    """Check the options of a signed trigger, and its secret if this process has it."""
    if not isinstance(signed_id, str) or signed_id not in ("trigger", "any"):
        raise BadArgument(f"signed_id must be 'trigger' or 'any', got {shorten(signed_id)}")
    if signed is None:
        return
    if isinstance(signed, str) and signed.startswith("whsec_"):
        raise BadArgument(
            "signed must be the name of an environment variable, got a secret; put the secret into a variable, such as "
            "BANK_SECRET, and pass signed='BANK_SECRET'"
        )
    if not isinstance(signed, str) or not signed or not signed.isprintable() or "=" in signed:
        raise BadArgument(f"signed must be the name of an environment variable, such as 'BANK_SECRET', got {signed!r}")
    if secret := os.environ.get(signed):
        read_key(secret, signed)


def read_signed_call(id: str, body: WaitBody, data: Any, signature: Signature, now_ms: int) -> tuple[Any, StateWrite]:
    """Verify a call and return the signed data, with the write that makes a repetition of the call fail."""
    if not isinstance(signature, Signature):
        raise BadArgument(
            f"signature must be a Signature, got a {type(signature).__name__}; make one with "
            "Signature.from_headers(headers, body)"
        )
    key = _read_key(body)
    verify(key, signature, now_ms // 1000)
    if body.signed_id == "trigger" and signature.id != id:
        raise BadSignature(
            f"the call is signed with the id {signature.id!r}, not with the id of trigger {id}; sign it with the "
            "trigger's id, or set signed_id='any' if the sender chooses its ids"
        )
    sent = parse_json(signature.body, f"the signed body for trigger {body.name!r}")
    if data is not None and _encode_sorted(to_plain(data, "the data of a trigger")) != _encode_sorted(sent):
        raise BadSignature(
            f"the data for trigger {body.name!r} differs from the signed body, which is what the step receives; "
            "leave data out"
        )
    # The name reveals neither the key nor the id. The key is a part of it: other senders may use the same ids.
    used = hmac.new(key, b"used id " + signature.id.encode(), hashlib.sha256).hexdigest()
    return sent, StateWrite(f"signed/{used}", b"1", 0, (signature.timestamp + ID_KEPT_S) * 1000)


def sign_call(id: str, body: WaitBody, data: Any, now_ms: int) -> Signature:
    """Sign a call of a trigger with the secret that this process has."""
    sent, now = pack(data, "the data of a trigger"), now_ms // 1000
    return Signature(id, now, sign_with(_read_key(body), id, now, sent), sent)


def _read_key(body: WaitBody) -> bytes:
    if body.signed is None:
        raise BadSignature(
            f"trigger {body.name!r} was created without signed=, so there is no secret to check a signature with; fire "
            "it without a signature, or create it with signed="
        )
    if secret := os.environ.get(body.signed):
        return read_key(secret, body.signed)
    raise TriggerError(
        f"trigger {body.name!r} is signed with the secret in {body.signed}, which is not set in this process; set that "
        "environment variable where triggers are fired"
    )
