"""Receive calls of standing webhooks: validate, record, and start a run or emit an event, in one commit."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol
from urllib.parse import parse_qs

import msgspec

from ..commit.command_sink import CommandSink
from ..commit.committer import CommitRequest
from ..core.errors import BadArgument, BadSignature, PayloadError, WebhookError, WebhookMethod
from ..core.events import EventBody
from ..core.ids import digest, uuid7
from ..core.payload import pack, parse_json, unpack
from ..core.schemas import make_validator
from ..core.signatures import ID_HEADER, Signature, read_headers, read_key, verify
from ..core.text import shorten
from ..core.trace_context import current_trace
from ..durable.journal import encode
from ..durable.wait_records import CallOrigin
from ..handlers.webhooks import Webhook
from ..ports.script_files import Deferred
from ..ports.unit import DAG, FLOW, Committed, NewEvent, Refused, Unit
from ..worker.child_runs import RunStart
from ..worker.routes import build_start_route
from .engine import FlowEngine
from .run_commands import FlowCommands

RECEIVED = "webhook.received"
MAX_KEY_CHARS = 500
MAX_COMPARED_CALLS = 1000  # newest calls among which the one of a repeated key is looked for


class WebhookReceipt(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What a call of a webhook did. `is_new` is False if its idempotency key was used before: then nothing.

    `differs` is True if the call that used the key first had another body."""

    webhook: str
    is_new: bool
    run: str | None = None  # the run it started
    event: str | None = None  # the kind of event it emitted
    key: str | None = None  # its idempotency key
    differs: bool = False


class DagStarts(Protocol):
    """Starts runs of dags."""

    async def start(self, dag: str, run: str, input: bytes, *, also: Sequence[NewEvent]) -> bool: ...


class DagStarter(Protocol):
    """What receives calls that start dags: the engine of dags, which this room does not know."""

    @property
    def commands(self) -> DagStarts: ...

    async def load_definition(self, target: Any) -> bool: ...


CheckSameInput = Callable[[str, str, Any], Awaitable[bool]]
"""Returns whether the run of a kind and an id was started with this input."""


class WebhookCommands:
    """Receives calls, through one sink."""

    def __init__(
        self,
        engine: FlowEngine,
        commands: FlowCommands,
        sink: CommandSink,
        dags: Callable[[], DagStarter] | None = None,
        check_same_input: CheckSameInput | None = None,
    ) -> None:
        self._dags = dags
        self._check_same_input = check_same_input
        self._engine = engine
        self._runtime = engine.runtime
        self._commands = commands
        self._sink = sink

    async def receive(
        self, webhook: Webhook, method: str, headers: Any, body: bytes, caller: CallOrigin
    ) -> WebhookReceipt:
        """Validate a call, record it, and start the run or emit the event in the same commit."""
        if method.upper() not in webhook.methods:
            raise WebhookMethod(f"webhook {webhook.path!r} accepts {', '.join(webhook.methods)}, got {shorten(method)}")
        found = read_headers(headers)
        self._verify(webhook, headers, body)
        data = _read_body(found, body, webhook)
        if webhook.schema is not None:
            what = f"the body for webhook {webhook.path!r}"
            make_validator(webhook.schema, what)(unpack(data))
        key = found.get(ID_HEADER) or found.get(webhook.key_header)
        if key is not None and not 0 < len(key) <= MAX_KEY_CHARS:
            raise BadArgument(f"the idempotency key of a call must have 1 to {MAX_KEY_CHARS} characters")
        act = self._start if webhook.flow is not None else self._emit
        return await act(webhook, data, key, method.upper(), caller)

    def _verify(self, webhook: Webhook, headers: Any, body: bytes) -> None:
        if webhook.signed is None:
            return
        secret = os.environ.get(webhook.signed)
        if not secret:
            raise WebhookError(
                f"webhook {webhook.path!r} is signed with the secret in {webhook.signed}, which is not set in this "
                "process; set that environment variable where webhooks are received"
            )
        signature = Signature.from_headers(headers, body)
        if signature is None:
            raise BadSignature(f"webhook {webhook.path!r} accepts only signed calls; sign it as in Standard Webhooks")
        verify(read_key(secret, webhook.signed), signature, self._runtime.clock.now_ms() // 1000)

    async def _start(
        self, webhook: Webhook, data: bytes, key: str | None, method: str, caller: CallOrigin
    ) -> WebhookReceipt:
        if await self.is_dag(webhook.flow):
            return await self._start_dag(webhook, data, key, method, caller)
        flow = self._runtime.registry().flow(str(webhook.flow))
        handler, value = flow.definition.entry.handler, unpack(data)
        handler.check_start(value, f"flow {flow.name!r}")
        run, is_routed, differs = None, False, False
        try:
            run = handler.make_key(value, flow.name)
        except Deferred:
            is_routed = True
        if run is None and key is not None:
            run = f"{flow.name}-{digest(f'webhook {webhook.path} {key}'.encode())}"
        run = run or uuid7(self._runtime.clock.now_ms())
        event, cause = self._received(webhook, data, key, method, caller, {"run": run}), f"webhook-{webhook.path}"
        if is_routed:
            is_new = await self._route(flow.name, run, value, cause, event)
        else:
            is_new = await self._commands.start(flow, run, data, cause=cause, also=[event])
            if not is_new:
                differs = await self._has_other_input(FLOW, run, value)
        return WebhookReceipt(webhook.path, is_new, run=run, key=key, differs=differs)

    async def _has_other_input(self, kind: str, run: str, value: Any) -> bool:
        return self._check_same_input is not None and not await self._check_same_input(kind, run, value)

    async def _has_other_body(self, webhook: Webhook, key: str | None, data: bytes) -> bool:
        """Return whether the call that used a key had another body, if it is one of the newest."""
        bodies = self._engine.bodies
        newest = await self._runtime.store.read(
            bodies.stream_name("webhook", webhook.path), limit=MAX_COMPARED_CALLS, backward=True
        )
        for event in newest:
            call = event.data
            if event.kind == RECEIVED and isinstance(call, dict) and call.get("key") == key:
                return bool(call.get("payload") != bodies.redact_value(unpack(data)))
        return False

    async def _route(self, flow: str, run: str, value: Any, cause: str, event: NewEvent) -> bool:
        """Leave the start to a worker that can evaluate the key: it appends the event with the run."""
        start = RunStart(flow, run, value, "", None, trace=current_trace.get())
        unit = Unit(self._runtime.new_unit_id(), jobs=[build_start_route(start, cause, also=[event])])
        receipt = await self._sink.submit(CommitRequest(lambda _v, _r: unit))
        return isinstance(receipt, Committed) and all(receipt.added)

    async def is_dag(self, name: str | None) -> bool:
        """Return whether a webhook starts a dag."""
        is_flow = name is None or name in self._runtime.registry().flows
        return not is_flow and self._dags is not None and await self._dags().load_definition(name)

    async def _start_dag(
        self, webhook: Webhook, data: bytes, key: str | None, method: str, caller: CallOrigin
    ) -> WebhookReceipt:
        assert self._dags is not None
        name = str(webhook.flow)
        run = f"{name}-{digest(f'webhook {webhook.path} {key}'.encode())}" if key is not None else None
        run = run or uuid7(self._runtime.clock.now_ms())
        event = self._received(webhook, data, key, method, caller, {"run": run})
        is_new = await self._dags().commands.start(name, run, data, also=[event])
        differs = not is_new and await self._has_other_input(DAG, run, unpack(data))
        return WebhookReceipt(webhook.path, is_new, run=run, key=key, differs=differs)

    async def _emit(
        self, webhook: Webhook, data: bytes, key: str | None, method: str, caller: CallOrigin
    ) -> WebhookReceipt:
        kind, bodies = str(webhook.event), self._engine.bodies
        meta = {"webhook": webhook.path}
        shown, original = bodies.encode_emitted(EventBody(kind, data=msgspec.Raw(data), meta=meta))
        received = self._received(webhook, data, key, method, caller, {"event": kind})
        unit = Unit(
            self._runtime.new_unit_id(),
            events=[received, NewEvent(bodies.global_stream, shown, kind, original)],
            once_key=f"webhook/{webhook.path}/{key}" if key is not None else None,
        )
        receipt = await self._sink.submit(CommitRequest(lambda _v, _r: unit))
        is_new = not isinstance(receipt, Refused)
        differs = not is_new and await self._has_other_body(webhook, key, data)
        return WebhookReceipt(webhook.path, is_new, event=kind, key=key, differs=differs)

    def _received(
        self, webhook: Webhook, data: bytes, key: str | None, method: str, caller: CallOrigin, target: dict[str, Any]
    ) -> NewEvent:
        shown: dict[str, Any] = {"method": method, "payload": msgspec.Raw(data), "source": caller.source}
        more = {"ip": caller.ip, "key": key, **target}
        shown.update((name, value) for name, value in more.items() if value is not None)
        bodies = self._engine.bodies
        body = EventBody(RECEIVED, data=msgspec.Raw(encode(shown)))
        return NewEvent(bodies.stream_name("webhook", webhook.path), bodies.encode(body))


def _read_body(headers: dict[str, str], body: bytes, webhook: Webhook) -> bytes:
    """Return the body as JSON: JSON itself, the fields of a form, or null if there is none."""
    what = f"the body for webhook {webhook.path!r}"
    if not isinstance(body, bytes):
        raise BadArgument(f"{what} must be the bytes as received, got {shorten(body)}")
    if not body.strip():
        return b"null"
    if headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        try:
            fields = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=1000)
        except ValueError as problem:
            raise PayloadError(f"{what} is not a valid form: {problem}") from None
        return pack({name: values[0] if len(values) == 1 else values for name, values in fields.items()}, what)
    return pack(parse_json(body, what), what)
