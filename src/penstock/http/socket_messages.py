"""Messages of a WebSocket: the commands that a client sends, and how an answer is put into a reply."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response, StreamingResponse

from ..core.api_errors import ApiError
from ..core.payload import parse_json
from .dispatch import JSON

MAX_FRAME_BYTES = 2**20
MAX_REPLY_BYTES = 10 * 2**20
MAX_REASON_BYTES = 120
MAX_ID_CHARS = 200
MAX_SUBSCRIPTION_CHARS = 16 * 1024  # a subscription is kept as long as it lasts


class BadMessage(ApiError):
    """A message that is no command. `id` is the one that the client gave, if it gave one."""

    def __init__(self, message: str, id: str = "") -> None:
        super().__init__(message)
        self.id = id


class Command(msgspec.Struct, forbid_unknown_fields=True):
    """A message of the client."""

    op: str
    id: str = ""
    stream: str | None = None
    queue: str | None = None
    job: str | None = None
    kinds: list[str] | None = None
    steps: list[str] | None = None
    flows: list[str] | None = None  # names of flows, or ids of runs
    tags: list[str] | None = None  # only events that have all of them
    backfill: int = 0  # newest events of a stream to send first, without `after`
    snapshot: bool = False  # first send the folded state of a run, then what comes after it
    after: str | None = None
    method: str = "GET"
    path: str = ""
    body: Any = None


def read_command(text: str | None) -> Command:
    """Return the command of a message. Raise BadMessage or the errors of a payload."""
    if text is None:
        raise BadMessage("a message must be text, got a binary frame; send JSON as text")
    if len(text) > MAX_FRAME_BYTES:
        raise BadMessage(f"a message has {len(text):,} characters; the limit is {MAX_FRAME_BYTES:,}")
    value = parse_json(text, "the message", MAX_FRAME_BYTES)
    given = value.get("id") if isinstance(value, dict) else None
    id = given if isinstance(given, str) else ""
    if len(id) > MAX_ID_CHARS:
        raise BadMessage(f"an id has at most {MAX_ID_CHARS} characters, got {len(id):,}")
    try:
        command = msgspec.convert(value, Command)
    except msgspec.ValidationError as problem:
        raise BadMessage(f"invalid message: {problem}", id) from None
    if command.op == "subscribe" and len(text) > MAX_SUBSCRIPTION_CHARS:
        raise BadMessage(
            f"a subscription has at most {MAX_SUBSCRIPTION_CHARS:,} characters, got {len(text):,}; use several", id
        )
    return command


def encode_body(command: Command, media: str) -> bytes:
    """Return the body of a call as its endpoint reads it: JSON, or lines that are passed as text."""
    if command.body is None:
        return b""
    if media != JSON and isinstance(command.body, str):
        return command.body.encode()
    return msgspec.json.encode(command.body)


async def read_answer(response: Response) -> Any:
    """Return an answer as a JSON value: what is not JSON, as text."""
    if isinstance(response, StreamingResponse):
        parts: list[bytes] = []
        async for part in response.body_iterator:
            parts.append(part.encode() if isinstance(part, str) else bytes(part))
            if sum(map(len, parts)) > MAX_REPLY_BYTES:
                raise ApiError(f"the answer has more than {MAX_REPLY_BYTES:,} bytes; request it over HTTP")
        body = b"".join(parts)
    else:
        body = bytes(response.body)
    is_json = response.headers.get("content-type", JSON).partition(";")[0] == JSON
    return msgspec.Raw(body) if is_json else body.decode()


def close_reason(text: str) -> str:
    """Return the reason of a close, which has few bytes."""
    return text.encode()[:MAX_REASON_BYTES].decode(errors="ignore")
