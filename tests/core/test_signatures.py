"""Signed calls, as Standard Webhooks has them."""

from __future__ import annotations

import pytest

from penstock.core.errors import BadSignature
from penstock.core.signatures import TOLERANCE_S, sign, verify

# The example of the Standard Webhooks libraries.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
ID, AT, BODY = "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
SIGNED = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_it_is_the_signature_everyone_makes() -> None:
    assert sign(SECRET, ID, AT, BODY) == SIGNED
    verify(SECRET, ID, AT, BODY, SIGNED, AT)


def test_one_of_several_is_enough() -> None:
    verify(SECRET, ID, AT, BODY, f"v1,bad= v2,{SIGNED} {SIGNED}", AT)


def test_a_secret_that_is_plain_text() -> None:
    verify("plain", ID, AT, BODY, sign("plain", ID, AT, BODY), AT)


@pytest.mark.parametrize("off", [TOLERANCE_S + 1, -TOLERANCE_S - 1])
def test_an_old_one_and_one_from_the_future(off: int) -> None:
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
def test_what_does_not_fit(id: str, at: int, body: bytes, signed: str) -> None:
    with pytest.raises(BadSignature, match="does not match"):
        verify(SECRET, id, at, body, signed, AT)
