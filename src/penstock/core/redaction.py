"""Redaction: applied once, where an event, a log line or an error is created. Jobs keep the data they need to run.

It hides the values of keys whose name contains a pattern, the values of dotted paths (`order.card.number`), and text
that looks like a credential. Without any pattern nothing is hidden.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

REDACTED = "[redacted]"

# Every repetition is bounded: the time must stay linear in the length of the text.
_TEXT = re.compile(
    r"(?P<bearer>\b(?i:bearer|basic)\s{1,8})[A-Za-z0-9._~+/-]{8,}=*"
    r"|(?P<userinfo>\b(?i:[a-z][a-z0-9+.-]{0,30})://"
    r"(?:[^\s/:@]{0,200}:(?=[^\s/]{1,500}@)|(?=[^\s/:@]{20,500}@)))[^\s/]{1,500}(?=@)"
    r"|-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
    re.DOTALL,
)
# Words joined by dots, each read once: a JSON Web Token, if the first one contains its start.
_DOTTED = re.compile(r"(?<![A-Za-z0-9_-])([A-Za-z0-9_-]{11,}+)(?:\.[A-Za-z0-9_-]{8,}+){1,4}")
_TOKEN_START = re.compile(r"\beyJ(?=[A-Za-z0-9_-]{8})")
# After the name of a secret: a separator, then the value: quoted, in brackets or up to the end of the word.
_VALUE = (
    r"[\w-]{0,40}\\?[\"']?\s{0,8}[=:]\s{0,8})"
    r"(?:(?P<quote>\\?[\"']).*?(?:(?P=quote)|\Z)|[\[({][^\])}]*+(?:[\])}]|\Z)|(?:(?i:bearer|basic|digest|token)\s{1,8})?[^\s\"',;&]+)"
)
_HEADER = re.compile(r"(?i)\b((?:proxy-)?authorization|(?:set-)?cookie)(\s{0,8}:\s{0,8})[^\r\n\"']+")
# Words for a cheap check before anything is parsed: most events contain no secret.
_HINTS = ("bearer", "basic", "://", "privatekey", "akia", "asia", "eyj")
_LOWER = bytes(range(256)).lower()
_SEPARATORS = b"-_ "
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class Redactor:
    """Hides secrets in JSON, in values and in text."""

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        listed = [pattern.strip().lower() for pattern in patterns if pattern.strip()]
        self._words = tuple(_normalize_key(pattern) for pattern in listed if "." not in pattern)
        self._paths = {tuple(pattern.split(".")) for pattern in listed if "." in pattern}
        self._is_off = not listed
        parts = [*self._words, *(_normalize_key(path[-1]) for path in self._paths)]
        self._hints = tuple(dict.fromkeys((*(_searchable(part.encode()) for part in parts), *_HINTS)))
        spelled = "|".join("[-_ ]?".join(map(re.escape, word)) for word in self._words)
        self._assignment = re.compile(rf"(?is)((?:{spelled}){_VALUE}") if spelled else None

    def redact_json(self, data: bytes) -> bytes:
        """Redact secrets in JSON; return the same bytes if there are none."""
        if self._is_off:
            return data
        text = data.translate(_LOWER, _SEPARATORS).decode("latin-1")  # Python searches text faster than bytes
        for hint in self._hints:
            if hint in text:
                break
        else:
            return data
        value = _decode(data)
        hidden = self.redact_value(value)
        return data if hidden == value else _encode(hidden)

    def redact_named(self, name: str, data: bytes) -> bytes:
        """Redact JSON that is stored under a name, such as a state key, if the name is one of a secret."""
        known = _normalize_key(name)
        if self._is_off or not any(word in known for word in self._words):
            return data
        return _encode(self.redact_value({name: _decode(data)})[name])

    def redact_value(self, value: Any, path: tuple[str, ...] = ()) -> Any:
        """Redact secrets in a JSON value."""
        if self._is_off:
            return value
        if isinstance(value, dict):
            return {key: self._member(key, item, (*path, key.lower())) for key, item in value.items()}
        if isinstance(value, list):
            return [self.redact_value(item, path) for item in value]
        return self.redact_text(value) if isinstance(value, str) else value

    def redact_text(self, text: str) -> str:
        """Redact what looks like a credential in a text, `password=…` included."""
        if self._is_off:
            return text
        text = _TEXT.sub(_hide, text)
        if "eyJ" in text:
            text = _DOTTED.sub(_hide_token, text)
        if self._assignment is None:
            return text
        return self._assignment.sub(_hide_value, _HEADER.sub(self._hide_header, text))

    def _hide_header(self, found: re.Match[str]) -> str:
        name = _normalize_key(found[1])
        return f"{found[1]}{found[2]}{REDACTED}" if any(word in name for word in self._words) else found[0]

    def _member(self, key: str, item: Any, path: tuple[str, ...]) -> Any:
        if any(path[-len(listed) :] == listed for listed in self._paths):
            return REDACTED
        name = _normalize_key(key)
        if not any(word in name for word in self._words) or item is None:
            return self.redact_value(item, path)
        # A number under `token` may be one; under `max_tokens` it is a count.
        return REDACTED if isinstance(item, str | list | dict) or name in self._words else item


def _hide(found: re.Match[str]) -> str:
    return f"{found['bearer'] or found['userinfo'] or ''}{REDACTED}"


def _hide_token(found: re.Match[str]) -> str:
    start = _TOKEN_START.search(found[1])
    return f"{found[1][: start.start()]}{REDACTED}" if start is not None else found[0]


def _hide_value(found: re.Match[str]) -> str:
    quote = found["quote"] or ""
    return f"{found[1]}{quote}{REDACTED}{quote}"


def _searchable(data: bytes) -> str:
    """Return bytes as lowercase text without separators."""
    return data.translate(_LOWER, _SEPARATORS).decode("latin-1")


def _normalize_key(key: str) -> str:
    """Return one form for `api_key`, `apiKey` and `API-Key`."""
    return re.sub(r"[-_ ]", "", key).lower()
