"""Signatures of calls, as defined by Standard Webhooks."""

from __future__ import annotations

import pytest

from penstock.core.errors import BadSignature
from penstock.core.signatures import TOLERANCE_S, sign, verify

# The example of the Standard Webhooks libraries.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
ID, AT, BODY = "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
SIGNED = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_the_signature_follows_standard_webhooks() -> None:
    assert sign(SECRET, ID, AT, BODY) == SIGNED
    verify(SECRET, ID, AT, BODY, SIGNED, AT)


def test_one_valid_signature_of_several_is_enough() -> None:
    verify(SECRET, ID, AT, BODY, f"v1,bad= v2,{SIGNED} {SIGNED}", AT)


def test_a_plain_text_secret() -> None:
    verify("plain", ID, AT, BODY, sign("plain", ID, AT, BODY), AT)


@pytest.mark.parametrize("off", [TOLERANCE_S + 1, -TOLERANCE_S - 1])
def test_timestamps_beyond_the_tolerance_are_refused(off: int) -> None:
    with pytest.raises(BadSignature, match="off by 301 s"):
        verify(SECRET, ID, AT, BODY, SIGNED, AT + off)


@pytest.mark.parametrize(
    ("id", "at", "body", "signed"),
    [
        ("other", AT, BODY, SIGNED),
        (ID, AT + 1, BODY, SIGNED),
        (ID, AT, BODY + b" ", SIGNED),
        (ID, AT, BODY, SIGNED[3:]),
        (ID, AT, BODY, ""),
        (ID, AT, BODY, "v1,ä"),
    ],
)
def test_wrong_signatures_are_refused(id: str, at: int, body: bytes, signed: str) -> None:
    with pytest.raises(BadSignature, match="does not match"):
        verify(SECRET, id, at, body, signed, AT)
