"""Redaction: applied once, where an event, a log line or an error is made. Jobs keep what they need to run.

Hidden are the values of keys whose name holds one of the patterns, of dotted paths (`order.card.number`), and text that
looks like a credential wherever it stands. Without any pattern nothing is hidden.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

HIDDEN = "[redacted]"

# Every repetition has an end: a long error must not take longer than its length.
_TEXT = re.compile(
    r"(?P<bearer>\b(?i:bearer|basic)\s{1,8})[A-Za-z0-9._~+/-]{8,}=*"
    r"|(?P<userinfo>\b(?i:[a-z][a-z0-9+.-]{0,30})://"
    r"(?:[^\s/:@]{0,200}:(?=[^\s/]{1,500}@)|(?=[^\s/:@]{20,500}@)))[^\s/]{1,500}(?=@)"
    r"|-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"
    r"|\beyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]{8,}){1,4}",
    re.DOTALL,
)
# After the name of a secret: what stands between them, then the value, quoted or up to where a word ends.
_VALUE = (
    r"[\w-]{0,40}\\?[\"']?\s{0,8}[=:]\s{0,8})"
    r"(?:(?P<quote>\\?[\"']).*?(?:(?P=quote)|\Z)|(?:(?i:bearer|basic|digest|token)\s{1,8})?[^\s\"',;&]+)"
)
_HEADER = re.compile(r"(?i)\b((?:proxy-)?authorization|(?:set-)?cookie)(\s{0,8}:\s{0,8})[^\r\n\"']+")
# Words of a cheap look before anything is parsed: most events hold nothing to hide.
_HINTS = ("bearer", "basic", "://", "privatekey", "akia", "asia", "eyj")
_LOWER = bytes(range(256)).lower()
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class Redactor:
    """Hides secrets in JSON, in values and in text."""

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        listed = [pattern.strip().lower() for pattern in patterns if pattern.strip()]
        self._words = tuple(_plain(pattern) for pattern in listed if "." not in pattern)
        self._paths = {tuple(pattern.split(".")) for pattern in listed if "." in pattern}
        self._off = not listed
        parts = [*self._words, *(_plain(path[-1]) for path in self._paths)]
        self._hints = tuple(dict.fromkeys((*(_look(part.encode()) for part in parts), *_HINTS)))
        spelled = "|".join("[-_ ]?".join(map(re.escape, word)) for word in self._words)
        self._said = re.compile(rf"(?is)((?:{spelled}){_VALUE}") if spelled else None

    def json(self, data: bytes) -> bytes:
        """JSON with its secrets hidden; the same bytes if there are none."""
        if self._off:
            return data
        text = _look(data)
        for hint in self._hints:
            if hint in text:
                break
        else:
            return data
        value = _decode(data)
        hidden = self.value(value)
        return data if hidden == value else _encode(hidden)

    def value(self, value: Any, path: tuple[str, ...] = ()) -> Any:
        """A JSON value with its secrets hidden."""
        if self._off:
            return value
        if isinstance(value, dict):
            return {key: self._member(key, item, (*path, key.lower())) for key, item in value.items()}
        if isinstance(value, list):
            return [self.value(item, path) for item in value]
        return self.text(value) if isinstance(value, str) else value

    def text(self, text: str) -> str:
        """Text with what looks like a credential hidden, `password=…` included."""
        if self._off:
            return text
        text = _TEXT.sub(_hide, text)
        if self._said is None:
            return text
        return self._said.sub(_hide_value, _HEADER.sub(self._hide_header, text))

    def _hide_header(self, found: re.Match[str]) -> str:
        name = _plain(found[1])
        return f"{found[1]}{found[2]}{HIDDEN}" if any(word in name for word in self._words) else found[0]

    def _member(self, key: str, item: Any, path: tuple[str, ...]) -> Any:
        if any(path[-len(listed) :] == listed for listed in self._paths):
            return HIDDEN
        name = _plain(key)
        if not any(word in name for word in self._words) or item is None:
            return self.value(item, path)
        # A number under `token` may be one; under `max_tokens` it is a count.
        return HIDDEN if isinstance(item, str | list | dict) or name in self._words else item


def _hide(found: re.Match[str]) -> str:
    return f"{found['bearer'] or found['userinfo'] or ''}{HIDDEN}"


def _hide_value(found: re.Match[str]) -> str:
    quote = found["quote"] or ""
    return f"{found[1]}{quote}{HIDDEN}{quote}"


def _look(data: bytes) -> str:
    """Bytes as one looks for hints in them. Each becomes a character: text is searched faster than bytes are."""
    return data.translate(_LOWER, b"-_ ").decode("latin-1")


def _plain(key: str) -> str:
    """`api_key`, `apiKey` and `API-Key` are one name."""
    return re.sub(r"[-_ ]", "", key).lower()
