"""Fifty secrets, as they appear in payloads and in text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.settings import Settings

REDACT = (*Settings().redact, "order.card.number", "patient.diagnosis")


@dataclass(frozen=True)
class Canary:
    """A secret, a payload that contains it, and a text that contains it, if it can be recognised there."""

    secret: str
    payload: Any
    text: str | None


_KEYS = [
    *("password", "dbPassword", "PASSWORD", "passwd", "client_secret", "secretKey", "token", "accessToken"),
    *(
        "refresh-token",
        "Authorization",
        "cookie",
        "Set-Cookie",
        "api_key",
        "apiKey",
        "X-API-Key",
        "aws_secret_access_key",
    ),
]
_WORD = "k9Zq7x{n}Lw3"


def _keys() -> list[Canary]:
    found = []
    for number, key in enumerate(_KEYS):
        secret = _WORD.format(n=f"key{number}")
        value = {"user": "ann", key: secret} if number % 2 else {"deep": [{"er": {key: secret}}]}
        found.append(Canary(secret, value, f"could not log in with {value!r}, sorry"))
    return found


def _paths() -> list[Canary]:
    numbers = [_WORD.format(n=f"path{number}") for number in range(4)]
    return [
        Canary(numbers[0], {"order": {"id": 1, "card": {"number": numbers[0]}}}, None),
        Canary(numbers[1], {"order": [{"card": {"number": numbers[1]}}]}, None),
        Canary(numbers[2], {"patient": {"diagnosis": numbers[2]}}, None),
        Canary(numbers[3], {"ward": {"patient": {"diagnosis": [numbers[3]]}}}, None),
    ]


def _texts() -> list[Canary]:
    found: list[tuple[str, str]] = []

    def add(template: str, secret: str) -> None:
        found.append((secret, template.format(secret)))

    for number, template in enumerate(
        ("Bearer {}", "the header was bearer {}", "'Bearer {}'", "Basic {}", "auth=Bearer {}")
    ):
        add(template, _WORD.format(n=f"bearer{number}"))
    for number, template in enumerate(
        (
            "redis://:{}@cache:6379/0",
            "cannot connect to postgresql://ann:{}@db.example.com/shop?x=1",
            "amqp://ann:p@{}@host",
            "HTTPS://ann:{}@example.com/a/b",
            "see https://{}@git.example.com/repo",
        )
    ):
        add(template, _WORD.format(n=f"userinfo{number}long"))
    body = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC{}\nBKcwggSjAgEAAoIBAQC7\n"
    for number, kind in enumerate(("RSA ", "EC ", "", "OPENSSH ")):
        secret = _WORD.format(n=f"pem{number}")
        end = f"-----END {kind}PRIVATE KEY-----" if number else "(cut off)"
        found.append((secret, f"-----BEGIN {kind}PRIVATE KEY-----\n{body.format(secret)}{end}"))
    for number, prefix in enumerate(("AKIA", "ASIA", "AKIA", "ASIA")):
        secret = f"{prefix}IOSFODNN7EXAM{number}AB"
        found.append((secret, f"credentials {secret} were refused" if number % 2 else secret))
    for number in range(4):
        secret = (
            f"eyJhbGciOiJIUzI1NiJ9{number}.eyJzdWIiOiIxMjM0NTY3ODkwIn0{number}.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9{number}"
        )
        found.append((secret, f"jwt {secret} is expired"))
    for number, template in enumerate(
        (
            "password={}",
            'password: "{} and more"',
            "GET /login?api_key={}&user=ann",
            "Cookie: session={}; theme=dark",
            "{{'token': '{}'}}",
            '{{\\"client_secret\\": \\"{}\\"}}',
            "Authorization: {}",
            "DB_PASSWD = {};",
        )
    ):
        add(template, _WORD.format(n=f"text{number}"))
    return [Canary(secret, {"note": text}, text) for secret, text in found]


CANARIES = [*_keys(), *_paths(), *_texts()]
