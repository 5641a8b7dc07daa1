"""Log lines: for people, coloured at a terminal, or for programs, one JSON object a line.

Nothing here happens until `configure` is called: a library leaves logging to the application. Every record that is
logged inside a handler gets its run, step and attempt, whichever logger is used.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal, Protocol, TextIO

from ..core.clock import to_iso
from ..core.text import escape_line, escape_lines

if TYPE_CHECKING:  # `--help` does without it
    from ..core.redaction import Redactor

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["pretty", "json"]
ROOT = ""  # the root logger
LOGGER = "penstock"
HANDLER = f"{LOGGER}.handler"  # the logger of `ctx.log`
FIELDS = ("run", "flow", "step", "job", "attempt", "queue", "code", "trace_id", "span_id")
_COLOURS = {"debug": "2", "info": "", "warning": "33", "error": "31", "critical": "31;1"}

_attempt: ContextVar[Callable[[], Mapping[str, Any]] | None] = ContextVar("penstock_attempt", default=None)


# Records that are logged between these two belong to the attempt, also on threads that inherit the context. The fields
# are computed when something is logged; most attempts log nothing.
enter_attempt = _attempt.set
leave_attempt = _attempt.reset


class AttemptFilter(logging.Filter):
    """Adds `run`, `flow`, `step`, `job`, `attempt` and `queue` to each record; None outside a handler.

    `configure` installs it. For your own logging handlers: `handler.addFilter(AttemptFilter())`.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        fields = _attempt.get()
        here = fields() if fields is not None else {}
        for name in FIELDS:
            if getattr(record, name, None) is None:
                setattr(record, name, here.get(name))
        return True


class TextRedactor(Protocol):
    """TextRedactor secrets in text."""

    def redact_text(self, text: str) -> str: ...


class _LineFormatter(logging.Formatter):
    """Base of both formats."""

    def __init__(self, redactor: TextRedactor | None) -> None:
        super().__init__()
        self._redactor = redactor

    def message(self, record: logging.LogRecord) -> str:
        # Records of `ctx.log` are redacted already, by the rules of their own App.
        return record.getMessage() if _is_redacted(record) else self.redact(record.getMessage())

    def error(self, record: logging.LogRecord) -> str | None:
        """Return the traceback, if the record has one."""
        parts = [self.formatException(record.exc_info)] if record.exc_info and record.exc_info[0] else []
        if not parts and record.exc_text:
            parts.append(record.exc_text)
        if record.stack_info:
            parts.append(record.stack_info)
        return self.redact("\n".join(parts)) if parts else None

    def redact(self, text: str) -> str:
        return text if self._redactor is None else self._redactor.redact_text(text)


class JsonFormatter(_LineFormatter):
    """One JSON object a line: ts, level, logger, msg; the fields of an attempt, if known; fields; error."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "ts": to_iso(int(record.created * 1000)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": self.message(record),
        }
        line.update(_attempt_fields(record))
        if fields := _fields(record):
            line["fields"] = fields
        if (error := self.error(record)) is not None:
            line["error"] = error
        return json.dumps(line, default=str)


class PrettyFormatter(_LineFormatter):
    """`warning: RUN STEP: message`, coloured at a terminal."""

    def __init__(self, redactor: TextRedactor | None, *, colour: bool = False) -> None:
        super().__init__(redactor)
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        level, known = record.levelname.lower(), _attempt_fields(record)
        place = " ".join(str(known[name]) for name in ("run", "step") if name in known) or str(known.get("job", ""))
        attempt = f" attempt {known['attempt']}" if known.get("attempt", 1) != 1 else ""
        text = " ".join((self.message(record), *(f"{name}={value}" for name, value in _fields(record).items())))
        head = "" if level == "info" else self._colourise(_COLOURS.get(level, ""), f"{level}: ")
        where = self._colourise("2", f"{escape_line(place)}{attempt}: ") if place else ""
        error = self.error(record)
        # The text may come from anyone, and it must not look like lines of the log or change the terminal.
        return f"{head}{where}{escape_line(text)}" + (f"\n{escape_lines(error)}" if error is not None else "")

    def _colourise(self, colour: str, text: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if self._colour and colour else text


class LineHandler(logging.Handler):
    """Writes lines to a stream, or to the present stderr: a live view may replace it for a while."""

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__()
        self._stream = stream
        self.addFilter(AttemptFilter())

    @property
    def stream(self) -> TextIO:
        return self._stream if self._stream is not None else sys.stderr

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(self.format(record), file=self.stream, flush=True)
        except Exception:  # as logging does: report what cannot be logged, and go on
            self.handleError(record)


def configure(
    level: Level = "info",
    format: Format = "pretty",
    *,
    logger: str = LOGGER,
    redactor: Redactor | TextRedactor | None = None,
    stream: TextIO | None = None,
) -> LineHandler:
    """Write the records of a logger, from a level on, to stderr. Calling it again replaces the settings.

    `logger=""` is the root logger: your application and its libraries too. `redactor` hides secrets; the default one
    hides those of the default settings.
    """
    target = logging.getLogger(logger or None)
    for old in [one for one in target.handlers if isinstance(one, LineHandler)]:
        target.removeHandler(old)
    handler = LineHandler(stream)
    hide = redactor if redactor is not None else _default_redactor()
    at_terminal = handler.stream.isatty()
    handler.setFormatter(JsonFormatter(hide) if format == "json" else PrettyFormatter(hide, colour=at_terminal))
    target.addHandler(handler)
    target.setLevel(level.upper())
    if logger:
        target.propagate = False  # else a root logger with handlers writes every line twice
    return handler


@contextmanager
def restore_loggers(*loggers: str) -> Iterator[None]:
    """Restore these loggers (the root is "") on exit, whatever is configured inside.

    Handlers that are not ours are left alone: others may add and remove theirs meanwhile.
    """
    targets = [logging.getLogger(name or None) for name in loggers]
    before = [(target.level, target.propagate, target.handlers[:]) for target in targets]
    try:
        yield
    finally:
        for target, (level, propagate, handlers) in zip(targets, before, strict=True):
            target.setLevel(level)  # not by assignment: setLevel also clears the caches
            target.propagate = propagate
            for new in [one for one in target.handlers if isinstance(one, LineHandler)]:
                target.removeHandler(new)
            for old in [one for one in handlers if isinstance(one, LineHandler)]:
                target.addHandler(old)


def _default_redactor() -> TextRedactor:
    from ..core.redaction import Redactor
    from ..settings import Settings

    return Redactor(Settings().redact)


def _attempt_fields(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name in FIELDS if (value := getattr(record, name, None)) is not None}


def _is_redacted(record: logging.LogRecord) -> bool:
    return bool(getattr(record, "redacted", False))


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    """Return the fields of a message: `ctx.log("paid", amount=5)`."""
    return getattr(record, "fields", None) or {} if _is_redacted(record) else {}
