"""The index keys of a run: what it is found by besides its flow, its status and the time it was started.

A key is a letter and a hash, so that its length is bounded and it shows no value. A run without a correlation id of
another, tags, attributes and failures has none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from ..core.ids import digest
from ..worker.child_runs import parent_key
from .run_record import FailedStep, RunRecord

MAX_ERROR_WORDS = 24  # of one failure
_WORD = re.compile(r"[^\W_]+")


def correlation_key(id: str) -> str:
    return _key("c", id)


def tag_keys(tags: Mapping[str, str]) -> list[str]:
    return [_key("t", name, value) for name, value in tags.items()]


def attribute_keys(attributes: Mapping[str, str]) -> list[str]:
    return [_key("a", name, value) for name, value in attributes.items()]


def failure_keys(step: str | None, error: str | None) -> list[str]:
    """Return the keys of a failed step and of the words of its error."""
    return [*([_key("f", step)] if step is not None else []), *(_key("e", word) for word in error_words(error or ""))]


def error_words(text: str) -> list[str]:
    """Return the words of an error in lower case, each once."""
    return list(dict.fromkeys(_WORD.findall(text.lower())))


def start_keys(run: str, record: RunRecord) -> tuple[str, ...]:
    """Return the keys of a new run. Its own id is its correlation id unless it got another one."""
    has_own_id = record.correlation_id == run
    if has_own_id and record.parent is None and not (record.tags or record.attributes or record.failures):
        return ()
    correlation = [] if has_own_id else [correlation_key(record.correlation_id)]
    up = [parent_key(record.parent.run)] if record.parent is not None else []
    return (
        *up, *correlation, *tag_keys(record.tags), *attribute_keys(record.attributes), *failed_keys(record.failures)
    )  # fmt: skip


def failed_keys(failures: Iterable[FailedStep]) -> tuple[str, ...]:
    """Return the keys of what has failed in a run."""
    keys: dict[str, None] = {}
    for failure in failures:
        keys[_key("f", failure.step)] = None
        for word in error_words(_error_text(failure))[:MAX_ERROR_WORDS]:
            keys[_key("e", word)] = None
    return tuple(keys)


def has_failed_with(failures: Iterable[FailedStep], step: str | None, error: str | None) -> bool:
    """Return whether one failure is of the step and has all words of the error. A key outlives a redriven failure."""
    wanted = set(error_words(error or ""))
    return any(
        (step is None or failure.step == step) and wanted <= set(error_words(_error_text(failure))[:MAX_ERROR_WORDS])
        for failure in failures
    )


def _error_text(failure: FailedStep) -> str:
    return f"{failure.name or ''} {failure.code or ''} {failure.error}"


def _key(kind: str, *parts: str) -> str:
    return f"{kind}{digest(chr(0).join(parts).encode())}"
