"""Penstock's log as lines: for people, coloured at a terminal, or for programs, one JSON object each.

Nothing here happens unless it is asked for: a library leaves logging to the application. What code logs inside a
handler knows its run, step and attempt, whichever logger it uses.
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

if TYPE_CHECKING:  # `--help` does without it
    from ..core.redaction import Redactor

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["pretty", "json"]
LOGGER = "penstock"
HANDLER = f"{LOGGER}.handler"  # the logger of `ctx.log`
FIELDS = ("run", "step", "job", "attempt", "queue")
_COLOURS = {"debug": "2", "info": "", "warning": "33", "error": "31", "critical": "31;1"}

_attempt: ContextVar[Callable[[], Mapping[str, Any]] | None] = ContextVar("penstock_attempt", default=None)


# What is logged between these two, on threads that inherit the context too, is of this attempt. Its fields are asked
# for when something is logged, which most attempts do not do: so this is all it costs them.
enter_attempt = _attempt.set
leave_attempt = _attempt.reset


class AttemptFilter(logging.Filter):
    """Gives records the `run`, `step`, `job`, `attempt` and `queue` they were made in; None outside a handler.

    `configure` installs it. For handlers of your own: `handler.addFilter(AttemptFilter())`.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        fields = _attempt.get()
        here = fields() if fields is not None else {}
        for name in FIELDS:
            if getattr(record, name, None) is None:
                setattr(record, name, here.get(name))
        return True


class Hides(Protocol):
    """Hides secrets in text."""

    def redact_text(self, text: str) -> str: ...


class _Lines(logging.Formatter):
    """What both formats are made of."""

    def __init__(self, redactor: Hides | None) -> None:
        super().__init__()
        self._redactor = redactor

    def message(self, record: logging.LogRecord) -> str:
        # What handlers log was hidden where it was made, by the rules of its own App.
        return record.getMessage() if _hidden_before(record) else self.hidden(record.getMessage())

    def error(self, record: logging.LogRecord) -> str | None:
        """The traceback, if the record has one."""
        parts = [self.formatException(record.exc_info)] if record.exc_info and record.exc_info[0] else []
        if record.stack_info:
            parts.append(record.stack_info)
        return self.hidden("\n".join(parts)) if parts else None

    def hidden(self, text: str) -> str:
        return text if self._redactor is None else self._redactor.redact_text(text)


class JsonLines(_Lines):
    """One JSON object a line: ts, level, logger, msg; run, step, job, attempt, queue where known; fields; error."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "ts": to_iso(int(record.created * 1000)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": self.message(record),
        }
        line.update(_known(record))
        if fields := _fields(record):
            line["fields"] = fields
        if (error := self.error(record)) is not None:
            line["error"] = error
        return json.dumps(line, default=str)


class PrettyLines(_Lines):
    """`warning: RUN STEP: what happened`, in colour at a terminal."""

    def __init__(self, redactor: Hides | None, *, colour: bool = False) -> None:
        super().__init__(redactor)
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        level, known = record.levelname.lower(), _known(record)
        place = " ".join(str(known[name]) for name in ("run", "step") if name in known) or str(known.get("job", ""))
        attempt = f" attempt {known['attempt']}" if known.get("attempt", 1) != 1 else ""
        said = " ".join((self.message(record), *(f"{name}={value}" for name, value in _fields(record).items())))
        head = "" if level == "info" else self._in(_COLOURS.get(level, ""), f"{level}: ")
        where = self._in("2", f"{place}{attempt}: ") if place else ""
        error = self.error(record)
        return f"{head}{where}{said}" + (f"\n{error}" if error is not None else "")

    def _in(self, colour: str, text: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if self._colour and colour else text


class LineHandler(logging.Handler):
    """Writes lines to a stream, or to whatever stderr is at the time: a live picture replaces it for a while."""

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
        except Exception:  # logging's own rule: what cannot be logged is reported, and does no harm
            self.handleError(record)


def configure(
    level: Level = "info",
    format: Format = "pretty",
    *,
    logger: str = LOGGER,
    redactor: Redactor | Hides | None = None,
    stream: TextIO | None = None,
) -> LineHandler:
    """Writes what a logger says, from a level on, to stderr; calling it again changes how.

    `logger=""` is the root: everything your application and its libraries log, too. `redactor` hides secrets; without
    one, those of the default settings are hidden.
    """
    target = logging.getLogger(logger or None)
    for old in [one for one in target.handlers if isinstance(one, LineHandler)]:
        target.removeHandler(old)
    handler = LineHandler(stream)
    hides = redactor if redactor is not None else _usual()
    at_terminal = handler.stream.isatty()
    handler.setFormatter(JsonLines(hides) if format == "json" else PrettyLines(hides, colour=at_terminal))
    target.addHandler(handler)
    target.setLevel(level.upper())
    if logger:
        target.propagate = False  # else a root that has handlers of its own says everything twice
    return handler


@contextmanager
def unchanged(*loggers: str) -> Iterator[None]:
    """Whatever is configured inside, these loggers (the root is "") are afterwards as they were.

    Handlers that are not ours are left alone: others put theirs on and take them off again meanwhile.
    """
    targets = [logging.getLogger(name or None) for name in loggers]
    before = [(target.level, target.propagate, target.handlers[:]) for target in targets]
    try:
        yield
    finally:
        for target, (level, propagate, handlers) in zip(targets, before, strict=True):
            target.setLevel(level)  # not by assignment: it also empties the caches of who is enabled
            target.propagate = propagate
            for new in [one for one in target.handlers if isinstance(one, LineHandler)]:
                target.removeHandler(new)
            for old in [one for one in handlers if isinstance(one, LineHandler)]:
                target.addHandler(old)


def _usual() -> Hides:
    from ..core.redaction import Redactor
    from ..settings import Settings

    return Redactor(Settings().redact)


def _known(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name in FIELDS if (value := getattr(record, name, None)) is not None}


def _hidden_before(record: logging.LogRecord) -> bool:
    return bool(getattr(record, "redacted", False))


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    """What a handler gave with a message: `ctx.log("paid", amount=5)`."""
    return getattr(record, "fields", None) or {} if _hidden_before(record) else {}
