"""The shapes of the engine's own events: code that folds or prints them relies on the types of their fields."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_Time = Annotated[str, msgspec.Meta(pattern=r"^[+-]?\d{4,6}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)$")]


class _Frame(msgspec.Struct):
    file: str
    line: int
    function: str
    source: str = ""


class _Meta(msgspec.Struct, rename="camel"):
    n: _Count | None = None
    attempt: _Count | None = None
    max_attempts: _Count | None = None
    duration: _Count | None = None
    index: _Count | None = None
    starts: list[str] | None = None
    job_id: str | None = None
    causation_id: str | None = None
    worker: str | None = None
    name: str | None = None


class _Data(msgspec.Struct, rename="camel"):
    name: str | None = None
    version: str | None = None
    status: str | None = None
    reason: str | None = None
    step: str | None = None
    duration: _Count | None = None
    unmet: dict[str, list[str]] | None = None
    error: str | None = None
    code: str | None = None
    file: str | None = None
    line: int | None = None
    frames: list[_Frame] = []
    dead_letter: str | None = None
    will_retry: bool | None = None
    next_retry_at: _Time | None = None
    resume_at: _Time | None = None
    timeout: _Count | None = None
    event_kind: str | None = None
    call: str | None = None
    started_at: _Time | None = None
    tries: _Count | None = None
    size: _Count | None = None
    trigger_id: str | None = None


_TYPED_META = ("flow.", "step.", "call.", "job.")
# Other kinds carry the data of user code, which may have any shape.
_TYPED_DATA = ("flow.", "step.failed", "step.await.", "call.", "job.failed")


def check_shape(kind: str, data: Any, meta: dict[str, Any] | None) -> None:
    """Raise msgspec.ValidationError if an event of the engine has a field of another type than the engine writes."""
    if not kind.startswith(_TYPED_META):
        return
    if meta is not None:
        msgspec.convert(meta, _Meta)
    if isinstance(data, dict) and kind.startswith(_TYPED_DATA):
        msgspec.convert(data, _Data)
