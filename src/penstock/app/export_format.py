"""The format of an export: one line of JSON for each run."""

from __future__ import annotations

import re

import msgspec

from ..core.errors import PenstockError
from ..core.events import Event
from ..core.payload import DECODE_ERRORS
from ..core.text import shorten
from ..ports.unit import FLOW, READ_PARTS, ROUTE

FORMAT = 3
OLDEST_FORMAT = 2
MAX_PROBLEM_CHARS = 400
ENGINE_JOBS = (ROUTE, READ_PARTS)  # internal jobs that a run record counts
MAX_LINE_BYTES = 256 * 2**20  # a line is decoded at once, which takes about ten times its size


class BadExport(PenstockError):
    """A file is not an export of `penstock export`."""

    code = "bad_export"


class SavedEvent(Event, frozen=True, omit_defaults=True, rename="camel", forbid_unknown_fields=True):
    """An event of an exported run."""


class SavedJob(msgspec.Struct, forbid_unknown_fields=True):
    """A job of an exported run, or a dead letter, which belongs to no run."""

    id: str
    queue: str
    name: str
    priority: int
    due: int
    run: str | None
    scope: str
    payload: msgspec.Raw
    opts: msgspec.Raw

    @property
    def failed_id(self) -> str:
        """The id of the job itself, or of the job that a dead letter is about."""
        return self.id.removesuffix(".dlq") if self.run is None else self.id

    @property
    def letter_scope(self) -> str:
        """The scope of the memos that a redrive of this dead letter would use."""
        return self.id.removesuffix(".dlq").partition(".redrive-")[0]


class SavedWait(msgspec.Struct, forbid_unknown_fields=True):
    """A pending wait of an exported run."""

    id: str
    kind: str
    scope: str
    due: int | None
    job: str
    topic: str | None
    key: str | None
    body: msgspec.Raw


class SavedStart(msgspec.Struct, forbid_unknown_fields=True):
    """An internal job of an exported run: it starts a child, or a page of many, routes an event, or reads parts of the
    run record."""

    id: str
    name: str
    payload: msgspec.Raw


class SavedRun(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """One line of an export: a run with everything that belongs to it."""

    penstock: int
    run: str
    flow: str
    status: str
    closed: bool
    created: int
    updated: int
    record: msgspec.Raw
    events: list[SavedEvent]
    jobs: list[SavedJob]
    state: dict[str, msgspec.Raw] = {}
    memos: dict[str, dict[str, msgspec.Raw]] = {}  # by scope
    waits: list[SavedWait] = []  # pending ones
    ended: list[SavedJob] = []  # jobs of completed steps with memos: for preflight checks, not imported
    kind: str = FLOW  # since format 3; files of format 2 contain only flows
    starts: list[SavedStart] = []  # of children that have not started yet
    routes: list[SavedStart] = []  # ENGINE_JOBS: a worker has not yet evaluated `when` and `map`, or read the parts


class _Version(msgspec.Struct):
    penstock: int


decode_run = msgspec.json.Decoder(SavedRun).decode
_decode_version = msgspec.json.Decoder(_Version).decode
_PATH = re.compile(r"^(.*) - at `\$\.?([^`]*)`$", re.DOTALL)
_PART = re.compile(r"\[(\d+)\]|([^.\[\]]+)")


def decode_line(line: bytes, number: int) -> SavedRun:
    """Decode a line of an export, or raise BadExport with its number and the field that is wrong."""
    if len(line.rstrip()) > MAX_LINE_BYTES:
        raise BadExport(
            f"line {number} has more than {MAX_LINE_BYTES // 2**20} MB, and `penstock export` writes no longer line. "
            "Remove the line"
        )
    try:
        saved = decode_run(line)
    except DECODE_ERRORS as problem:
        _check_version(_find_version(line), number)
        raise not_a_run(number, _describe(line, problem)) from None
    _check_version(saved.penstock, number)
    return saved


def not_a_run(number: int, problem: str) -> BadExport:
    """Build the error for a line that `export` cannot have written."""
    shown = problem if len(problem) <= MAX_PROBLEM_CHARS else f"{problem[:MAX_PROBLEM_CHARS]}…"
    return BadExport(
        f"line {number} is not a run written by `penstock export`: {shown}. Export the run again, or remove the line"
    )


def _check_version(version: int | None, number: int) -> None:
    if version is None or OLDEST_FORMAT <= version <= FORMAT:
        return
    if version > FORMAT:
        raise BadExport(
            f"line {number} was written by a newer version of Penstock (format {version}); upgrade Penstock"
        )
    raise not_a_run(number, f"penstock must be a format from {OLDEST_FORMAT} to {FORMAT}, got {version}")


def _find_version(line: bytes) -> int | None:
    try:
        return _decode_version(line).penstock
    except DECODE_ERRORS:
        return None


def _describe(line: bytes, problem: Exception) -> str:
    """Return what is wrong with a line: the field and its value, if the decoder knows them."""
    found = _PATH.match(str(problem))
    if found is None:
        shown = line[:100].decode("utf-8", "backslashreplace")
        return f"{str(problem) or type(problem).__name__}, got {shorten(shown)}"
    text, path = found.groups()
    try:
        value = msgspec.json.decode(line)
        for index, name in _PART.findall(path):
            value = value[int(index)] if index else value[name]
    except (*DECODE_ERRORS, LookupError):
        return f"{path}: {text}"
    return f"{path}: {text}, namely {shorten(value)}"
