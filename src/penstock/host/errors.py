"""Exceptions of a handler as frames."""

from __future__ import annotations

import traceback

from ..core.durations import to_ms
from ..core.errors import RateLimited, Retry
from ..core.retry import read_error_attribute
from ..core.tracebacks import extract_frames
from ..ports.frames import ErrorFrame

MAX_STACK_CHARS = 64_000
MAX_MESSAGE_CHARS = 64_000
_PLAIN_BASES = (object, BaseException, Exception)


def to_error_frame(problem: BaseException) -> ErrorFrame:
    """Return an exception as a frame, with the stack of the handler's own code."""
    after = getattr(problem, "after", None) if isinstance(problem, Retry | RateLimited) else None
    code = read_error_attribute(problem, "code")
    stack = "".join(traceback.format_list(extract_frames(problem)))
    retriable = read_error_attribute(problem, "retriable")
    answer = problem.__dict__.get("answer")
    return ErrorFrame(
        type(problem).__name__,
        _text(problem),
        [cls.__name__ for cls in type(problem).__mro__[1:] if cls not in _PLAIN_BASES],
        str(code) if code is not None else None,
        stack[-MAX_STACK_CHARS:] or None,
        to_ms(after) if after is not None else None,
        retriable if isinstance(retriable, bool) else None,
        answer if isinstance(answer, int) else None,
    )


def _text(problem: BaseException) -> str:
    try:
        text = str(problem)
    except Exception as other:
        return f"its text cannot be shown: {type(other).__name__}"
    return text.encode("utf-8", "backslashreplace").decode()[:MAX_MESSAGE_CHARS]
