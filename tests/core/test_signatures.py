"""Signatures of calls, as defined by Standard Webhooks."""

from __future__ import annotations

import base64
import hashlib
import hmac
import shlex
import subprocess
import sys
from typing import Any

import pytest

from penstock.core.errors import BadArgument, BadSignature, PenstockError, SettingError
from penstock.core.signatures import KEY_COMMAND, TOLERANCE_S, Signature, read_key, sign, verify

# The example of the Standard Webhooks libraries.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
ID, AT, BODY = "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
SIGNED = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
HEADERS = {"webhook-id": ID, "webhook-timestamp": str(AT), "webhook-signature": SIGNED}


def by_position(name: str, values: list[Any]) -> Any:
    """Parametrize a test with values that are too odd for its name."""
    return pytest.mark.parametrize(name, values, ids=[str(n) for n in range(len(values))])


def check(id: Any = ID, at: Any = AT, body: Any = BODY, value: Any = SIGNED, *, now: int = AT) -> None:
    verify(read_key(SECRET), Signature(id, at, value, body), now)


def sign_by_hand(key: bytes, id: str, at: int, body: bytes) -> str:
    """Return a signature that is made with the standard library alone."""
    signed = b".".join([id.encode(), str(at).encode(), body])
    return "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()


def test_the_signature_follows_standard_webhooks() -> None:
    assert sign(SECRET, ID, AT, BODY) == SIGNED
    check()


@pytest.mark.parametrize("size", [24, 25, 32, 64, 100])
@by_position("body", [b"", b"{}", '{"name": "Zoë"}'.encode(), b"\x00\xff", b"1.2.3"])
def test_vectors_of_the_standard_library(size: int, body: bytes) -> None:
    key = bytes(range(size))
    secret = "whsec_" + base64.b64encode(key).decode()
    by_hand = sign_by_hand(key, "msg_1", AT, body)
    assert sign(secret, "msg_1", AT, body) == by_hand
    verify(read_key(secret), Signature("msg_1", AT, by_hand, body), AT)


def test_one_valid_signature_of_several_is_enough() -> None:
    check(value=f"v1,bad= v2,{SIGNED} {SIGNED}")


def test_a_plain_text_secret() -> None:
    secret = "a plain text of 24 bytes"
    assert read_key(secret) == secret.encode()
    assert sign(secret, ID, AT, BODY) == sign_by_hand(secret.encode(), ID, AT, BODY)


@pytest.mark.parametrize("off", [TOLERANCE_S + 1, -TOLERANCE_S - 1])
def test_timestamps_beyond_the_tolerance_are_refused(off: int) -> None:
    with pytest.raises(BadSignature, match="off by 301 s"):
        check(now=AT + off)


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": "other"},
        {"at": AT + 1},
        {"body": BODY + b" "},
        {"value": SIGNED[3:]},
        {"value": ""},
        {"value": "v1,"},
        {"value": "v1,not base64!"},
        {"value": "v1,\x00"},
        {"value": SIGNED.replace("v1", "v1a")},
    ],
)
def test_wrong_signatures_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadSignature, match="does not match"):
        check(**wrong)


@by_position("value", ["v1,ä", "v1,\ud800", "x" * 4097, None, 5, b"v1,abc"])
def test_odd_signatures_are_refused(value: Any) -> None:
    with pytest.raises(
        BadSignature, match="webhook-signature must contain signatures of the form v1,<base64>"
    ) as problem:
        check(value=value)
    assert len(str(problem.value)) < 250


@by_position("id", ["", "ä", "a\x00", "\ud800", "two words", "a.b", "x" * 257, None, 5, b"msg"])
def test_odd_ids_are_refused(id: Any) -> None:
    with pytest.raises(BadSignature, match="webhook-id must have 1 to 256 visible ASCII characters") as problem:
        check(id=id)
    assert len(str(problem.value)) < 250


@by_position("at", ["1614265330", "", "soon", -1, 1.5, float("nan"), True, None, 2**63, 10**5000, -(10**5000)])
def test_odd_timestamps_are_refused(at: Any) -> None:
    with pytest.raises(BadSignature, match="webhook-timestamp must be the current time in whole seconds") as problem:
        check(at=at)
    assert len(str(problem.value)) < 250


def test_a_timestamp_in_the_far_future_is_refused() -> None:
    with pytest.raises(BadSignature, match="Sign every call with the current time"):
        check(at=10**14)


def test_a_full_stop_in_an_id_cannot_move_the_timestamp_into_the_body() -> None:
    """`a.5.6.{}` would else be the id `a` at 5 with the body `6.{}`, and the id `a.5` at 6 with the body `{}`."""
    value = sign_by_hand(read_key(SECRET), "a", AT, f"{AT + 1}.{{}}".encode())
    check("a", AT, f"{AT + 1}.{{}}".encode(), value)
    with pytest.raises(BadSignature, match="no full stop"):
        check(f"a.{AT}", AT + 1, b"{}", value)


@pytest.mark.parametrize("body", ["{}", None, {}, bytearray(b"{}")])
def test_a_body_must_be_bytes(body: Any) -> None:
    with pytest.raises(BadArgument, match="must be the bytes as received"):
        check(body=body)


@pytest.mark.parametrize("secret", ["whsec_c2VjcmV0", "whsec_", "x" * 23, "", "whsec_" + "A" * 28])
def test_short_keys_are_refused(secret: str) -> None:
    with pytest.raises(SettingError, match="use at least 24 bytes") as problem:
        read_key(secret, "BANK_SECRET")
    assert str(problem.value).startswith("BANK_SECRET is a key of ")
    assert KEY_COMMAND in str(problem.value)
    assert len(secret) < 10 or secret not in str(problem.value)
    with pytest.raises(SettingError, match="use at least 24 bytes"):
        sign(secret, ID, AT, BODY)


@pytest.mark.parametrize(
    ("secret", "problem"),
    ids=[str(n) for n in range(8)],
    argvalues=[
        ("whsec_" + "ä" * 32, "no valid base64"),
        ("whsec_" + "A" * 33, "no valid base64"),
        ("whsec_" + "A" * 32 + "\n", "no valid base64"),
        ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaS\x00", "no valid base64"),
        ("whsec_\ud800", "no valid base64"),
        ("\ud800" * 30, "is not valid text"),
        (b"bytes that are long enough!!", "must be text"),
        (None, "must be text"),
    ],
)
def test_secrets_that_cannot_be_read_are_refused(secret: Any, problem: str) -> None:
    with pytest.raises(SettingError, match=problem) as found:
        read_key(secret, "BANK_SECRET")
    assert str(found.value).endswith(f"make one with `{KEY_COMMAND}`")
    assert found.value.code == "bad_setting"


def test_the_command_in_the_errors_makes_a_key() -> None:
    command = shlex.split(KEY_COMMAND)
    made = subprocess.run([sys.executable, *command[1:]], capture_output=True, text=True, check=True).stdout
    assert len(read_key(made.strip())) == 32


@pytest.mark.parametrize(
    "headers",
    [
        HEADERS,
        {name.title(): value for name, value in HEADERS.items()},
        [(name.encode(), value.encode()) for name, value in HEADERS.items()],
        [*HEADERS.items(), ("host", b"\xff"), (5, None)],
    ],
)
def test_headers_are_read(headers: Any) -> None:
    signature = Signature.from_headers(headers, BODY)
    assert signature == Signature(ID, AT, SIGNED, BODY)


@pytest.mark.parametrize("headers", [{}, {"host": "example.com"}, []])
def test_a_call_without_headers_has_no_signature(headers: Any) -> None:
    assert Signature.from_headers(headers, BODY) is None


@pytest.mark.parametrize("name", HEADERS)
def test_missing_headers_are_named(name: str) -> None:
    with pytest.raises(BadSignature, match=f"the call has no header {name};"):
        Signature.from_headers({**{key: value for key, value in HEADERS.items() if key != name}}, BODY)


@by_position("at", ["", "soon", "-5", "1.5", "1e9", "٣", "9" * 5000, " 5", "\x00", "\ud800"])
def test_odd_timestamps_in_headers_are_refused(at: str) -> None:
    with pytest.raises(BadSignature, match="webhook-timestamp must be") as problem:
        Signature.from_headers({**HEADERS, "webhook-timestamp": at}, BODY)
    assert len(str(problem.value)) < 250


@pytest.mark.parametrize("headers", [None, 5, "text", [1, 2], [("one",)]])
def test_headers_must_be_pairs(headers: Any) -> None:
    with pytest.raises(BadArgument, match="headers must be a mapping"):
        Signature.from_headers(headers, BODY)


@pytest.mark.parametrize("name", HEADERS)
@by_position("odd", ["", "ä", "\x00", "\ud800", "x" * 1_000_000, "9" * 15])
def test_odd_headers_give_our_errors(name: str, odd: str) -> None:
    def receive() -> None:
        signature = Signature.from_headers({**HEADERS, name: odd}, BODY)
        assert signature is not None
        verify(read_key(SECRET), signature, AT)

    with pytest.raises(PenstockError) as problem:
        receive()
    assert problem.value.code == "bad_signature"
    assert len(str(problem.value)) < 250
