"""Near matches: "did you mean …?" for a word that is not known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from .errors import DefinitionError
from .text import shorten

MAX_WORD_CHARS, MAX_KNOWN_WORDS = 60, 300
MISSPELLING_CUTOFF = 0.85  # "order.payed" is as near to "order.paid"; "order.created" is not


def near_matches(word: object, known: Iterable[str], limit: int = 1) -> list[str]:
    """Return the known words nearest to this one, best first."""
    return _close_matches(word, known, limit, 0.6)


def _close_matches(word: object, known: Iterable[str], limit: int, cutoff: float) -> list[str]:
    # The comparison is quadratic in the length of the words: a name is short.
    if not isinstance(word, str) or len(word) > MAX_WORD_CHARS:
        return []
    names = sorted(name for name in known if len(name) <= MAX_WORD_CHARS)
    return difflib.get_close_matches(word, names[:MAX_KNOWN_WORDS], limit, cutoff)


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Return a hint at the nearest known word, or "" if none is near."""
    near = near_matches(word, known)
    return f"did you mean {near[0]!r}?" if near else ""


def is_probably(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that this one is almost certainly a misspelling of, or None."""
    near = _close_matches(word, known, 1, MISSPELLING_CUTOFF)
    return near[0] if near else None


def check_keys(options: Mapping[str, Any], known: set[str], what: str, where: str | None = None) -> None:
    """Raise DefinitionError for an unknown key, with the nearest known one."""
    if not isinstance(options, Mapping):
        raise DefinitionError(
            f"{what} must be a mapping with keys such as {', '.join(sorted(known))}; got {shorten(options)}",
            where=where,
        )
    for key in options:
        if key not in known:
            hint = did_you_mean(key, known) or f"known keys: {', '.join(sorted(known))}"
            raise DefinitionError(f"{what} has an unknown key {shorten(key)}; {hint}", where=where)


def hint_at_misspelt(missing: Iterable[str], found: Iterable[str], known: Iterable[str]) -> str:
    """Return "; got 'langg', did you mean 'lang'?" for a missing field that another one is near to."""
    unknown = [name for name in found if isinstance(name, str) and name not in known]
    pairs = ((near[0], name) for name in missing if (near := near_matches(name, unknown)))
    return next((f"; got {got!r}, did you mean {name!r}?" for got, name in pairs), "")
