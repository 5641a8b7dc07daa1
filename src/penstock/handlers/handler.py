"""A handler: a function with its options, shared by plain jobs and flow steps."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

import msgspec

from ..context.context import Context
from ..context.sync_context import SyncContext
from ..core.errors import BadArgument, DefinitionError, SchemaViolation
from ..core.ids import BadId, check_name, digest
from ..core.options import check_key
from ..core.payload import to_plain
from ..core.retry import RetryPolicy
from ..core.schemas import UnknownFields, Validator, make_validator, needs_validation
from ..core.text import shorten
from ..durable.declared_waits import Await, read_await
from ..ports.runner import Gate, HandlerRef, NodeBinding
from ..ports.script_files import Deferred, ScriptFunction
from ..ports.unit import KeepJobs, RateLimit
from .fingerprint import compute_fingerprint
from .options import (
    HandlerOptions,
    IdempotencyKey,
    OrderKeyOption,
    RateKeyOption,
    read_keep,
    read_key,
    read_key_of_input,
    read_rate_limit,
)

if TYPE_CHECKING:
    from ..schedules.declared import DeclaredSchedule

DEFINITIONS_ATTRIBUTE = "__penstock__"


@dataclass(frozen=True)
class Handler:
    """A function with its options."""

    bound_parameters: ClassVar[frozenset[str]] = frozenset()  # that are neither the input nor the ctx
    binding: ClassVar[NodeBinding | None] = None  # of the executor of a node
    gate: ClassVar[Gate | None] = None  # asked before each call

    name: str
    fn: Callable[..., Any]
    queue: str | None = None  # None: discovery sets it from the file name
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    timeout_ms: int | None = None
    priority: int = 0
    delay_ms: int = 0
    concurrency: int | None = None
    max_active: int | None = None
    call_concurrency: int | None = None  # None: the setting
    rate: RateLimit | None = None
    rate_key: RateKeyOption | None = None
    order_key: OrderKeyOption | None = None
    dead_letters: bool = True
    dead_letter_queue: str | None = None
    keep_completed: KeepJobs | None = None
    keep_failed: KeepJobs | None = None
    key: IdempotencyKey | None = None
    input_schema: Any = None
    output_schema: Any = None
    unknown_fields: UnknownFields | None = None  # None: as the setting says
    wait: Await | None = None
    runner: str | None = None  # None: in the worker's own process
    version: str = ""  # of a file in another language
    thread: bool | None = None  # of Node; see HandlerRef
    file: str = ""
    line: int = 0

    def __post_init__(self) -> None:
        check_name(self.name, "name")
        if self.queue is not None:
            check_name(self.queue, "queue name")
        if self.dead_letter_queue is not None:
            check_name(self.dead_letter_queue, "dead_letter_queue")
        if inspect.isgeneratorfunction(self.fn) or inspect.isasyncgenfunction(self.fn) or isinstance(self.fn, type):
            kind = "a class" if isinstance(self.fn, type) else "a generator"
            raise DefinitionError(f"{self.name} must be a function to be a handler, got {kind}", where=self.where)
        known = inspect.signature(self.fn).parameters.values()
        parameters = [parameter for parameter in known if parameter.name not in self.bound_parameters]
        annotation, passes = _read_signature(self.fn, parameters, self.where)
        schema = self.input_schema if self.input_schema is not None else annotation
        checks = (
            make_validator(schema, f"the input of {self.name!r}", unknown_fields=self.unknown_fields or "refuse")
            if schema is not None
            else None,
            make_validator(self.output_schema, f"the result of {self.name!r}")
            if self.output_schema is not None
            else None,
        )
        object.__setattr__(self, "is_async", inspect.iscoroutinefunction(self.fn))
        object.__setattr__(self, "_passes", passes)
        object.__setattr__(self, "takes_ctx", passes[1])
        object.__setattr__(self, "_checks", checks)
        object.__setattr__(self, "input_schema", schema)
        if self.runner is not None and self.ref.function is None:
            raise DefinitionError(
                f"{self.name} has runner={self.runner!r}, but a child process cannot import it: it is defined inside "
                "another function. Move it to the top level of its file",
                where=self.where,
            )

    is_async: bool = field(init=False, default=False)
    takes_ctx: bool = field(init=False, default=True)
    _passes: tuple[bool, bool] = field(init=False, default=(True, True), repr=False)
    _checks: tuple[Validator | None, Validator | None] = field(init=False, default=(None, None), repr=False)

    @cached_property
    def code(self) -> str:
        """The fingerprint of the code: the same in every process, another one after a change."""
        return self.version or compute_fingerprint(self.fn)

    @cached_property
    def ref(self) -> HandlerRef:
        """Return what another process needs to find the function."""
        name = getattr(self.fn, "__qualname__", None)
        is_importable = bool(self.file) and name is not None and "<" not in name
        function = name if is_importable else None
        return HandlerRef(
            self.name, self.queue_name, self.file, function, self.is_async, self.runner, self.version, self.thread
        )

    @property
    def where(self) -> str:
        """The file and line of the function."""
        return f"{self.file}:{self.line}" if self.file else getattr(self.fn, "__qualname__", self.name)

    @property
    def queue_name(self) -> str:
        """The queue its jobs are claimed from."""
        return self.queue or "default"

    @property
    def dlq(self) -> str:
        """The queue of its dead letters."""
        return self.dead_letter_queue or f"{self.queue_name}-dlq"

    def check_input(self, value: Any) -> Any:
        """Return the input, converted to its model; raise SchemaViolation if it does not match."""
        check = self._checks[0]
        return value if check is None else check(value)

    def check_start(self, value: Any, what: str) -> None:
        """Check the input of what this handler starts, such as "flow 'shop'"; raise SchemaViolation about that."""
        try:
            self.check_input(value)
        except SchemaViolation as problem:
            text = str(problem).replace(f"the input of {self.name!r}", f"the input of {what}", 1)
            hint = "" if value is not None else "; pass input=, or --input on the command line"
            raise SchemaViolation(text + hint) from None

    @property
    def has_output_schema(self) -> bool:
        return self._checks[1] is not None

    def check_output(self, value: Any) -> Any:
        """Return the result; raise SchemaViolation if it does not match."""
        check = self._checks[1]
        if check is not None:
            check(value)
        return value

    def call(self, value: Any, ctx: Context | SyncContext | None) -> Any:
        """Call the function with the arguments its signature takes."""
        takes_input, takes_ctx = self._passes
        if takes_input:
            return self.fn(value, ctx) if takes_ctx else self.fn(value)
        return self.fn(ctx) if takes_ctx else self.fn()

    def make_key(self, payload: Any, owner: str | None = None) -> str | None:
        """Return the idempotency key of an input, or None. A function receives the input as the handler does.

        A key made from a hash is unique in its `owner`: the flow, or else the queue. Raise Deferred for a function of
        another language: `evaluate_key` awaits it.
        """
        if self.key is None:
            return None
        if self.key_script is not None:
            raise Deferred
        if self.key == "auto":
            # Sort the keys of objects: equal inputs have equal keys.
            content = msgspec.json.encode([owner or self.queue_name, self.name, to_plain(payload)], order="sorted")
            return f"{self.name}-{digest(content)}"
        if not callable(self.key):
            return self._key_at(payload, self.key)
        value = self.check_input(payload)
        try:
            return self.key(value)
        except Exception as problem:
            raise self._failed_function("key", problem) from problem

    @property
    def key_script(self) -> ScriptFunction | None:
        """The function of another language that returns its key."""
        return _find_script(self.key)

    async def evaluate_key(self, payload: Any, owner: str | None = None) -> str | None:
        """Return the idempotency key of an input, also if it is a function of another language."""
        if self.key_script is None:
            return self.make_key(payload, owner)
        key = await self.key_script(payload)
        if isinstance(key, bool) or not isinstance(key, str | int):
            raise BadArgument(
                f"the idempotencyKey function of {self.name} ({self.where}) must return a string or a whole number, "
                f"got {shorten(key)}"
            )
        return key if isinstance(key, str) else f"{self.name}-{key}"

    def _key_at(self, payload: Any, path: str) -> str:
        value = _value_at(payload, path)
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise BadArgument(
                f"the value at {path!r}, the key of {self.name} ({self.where}), must be a string or a whole number, "
                f"got {shorten(value)}"
            )
        return value if isinstance(value, str) else f"{self.name}-{value}"  # an id is never only digits

    def make_rate_key(self, payload: Any) -> str | None:
        """Return the rate key of an input: the value at a dotted path, or of a function, which receives the input as
        the handler does. Raise Deferred for a function of another language: `evaluate_rate_key` awaits it."""
        if self.rate_key is None:
            return None
        if _find_script(self.rate_key) is not None:
            raise Deferred
        if callable(self.rate_key):
            try:
                typed = self.check_input(payload)
            except SchemaViolation:
                return None  # the attempt fails with it
            try:
                return _rate_key_text(self.rate_key(typed))
            except Exception as problem:
                raise self._failed_function("rate_key", problem) from problem
        return _rate_key_text(_value_at(payload, self.rate_key))

    async def evaluate_rate_key(self, payload: Any) -> str | None:
        """Return the rate key of an input, also if it is a function of another language."""
        script = _find_script(self.rate_key)
        if script is None:
            return self.make_rate_key(payload)
        try:
            return _rate_key_text(await script(payload))
        except SchemaViolation:
            return None  # the attempt fails with it

    def make_order_key(self, payload: Any) -> str | None:
        """Return the order key of an input, made like the rate key. Raise BadArgument if the input has none: the job
        would run out of order."""
        if self.order_key is None:
            return None
        if not callable(self.order_key):
            value = _value_at(payload, self.order_key)
            if isinstance(value, bool) or not isinstance(value, str | int):
                raise BadArgument(
                    f"the value at {self.order_key!r}, the order_key of {self.name} ({self.where}), must be a string "
                    f"or a whole number, got {shorten(value)}"
                )
            return check_key(str(value), "order_key")
        typed = self.check_input(payload)
        try:
            found = self.order_key(typed)
        except Exception as problem:
            raise self._failed_function("order_key", problem) from problem
        return None if found is None else check_key(found, "order_key")

    def _failed_function(self, option: str, problem: Exception) -> BadArgument:
        return BadArgument(
            f"the {option} function of {self.name} ({self.where}) failed for this input: {type(problem).__name__}: "
            f"{problem}"
        )

    def with_queue(self, queue: str) -> Self:
        """Return the handler on a queue, unless it has its own."""
        return self if self.queue is not None else replace(self, queue=queue)


def _find_script(option: object) -> ScriptFunction | None:
    return option if isinstance(option, ScriptFunction) else None


def _rate_key_text(value: Any) -> str:
    """Return another text for each value, so that 1 and "1" stay apart: a string that is not JSON, or JSON."""
    if isinstance(value, str) and not _is_json(value):
        return value
    try:
        return msgspec.json.encode(value).decode()
    except TypeError:  # an object of another type, from a function
        return str(value)


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError:
        return False
    return True


def _value_at(payload: Any, path: str) -> Any:
    """Return the value at a dotted path of an input, None if there is none."""
    value = payload
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _read_signature(
    fn: Callable[..., Any], parameters: list[inspect.Parameter], where: str
) -> tuple[Any, tuple[bool, bool]]:
    """Return the annotation of the input if it is a model, and whether the function takes an input and a ctx."""
    try:
        hints = typing.get_type_hints(fn)
    except Exception:  # a name only known to a type checker
        hints = {}
    takes_input = takes_ctx = False
    annotation: Any = None
    for parameter in parameters:
        hint = hints.get(parameter.name)
        if parameter.name in ("ctx", "context") or hint in (Context, SyncContext):
            takes_ctx = True
        elif not takes_input and not takes_ctx:
            takes_input = True
            annotation = hint if needs_validation(hint) else None
        elif parameter.default is inspect.Parameter.empty:
            raise DefinitionError(
                f"a handler must take (input, ctx), (input), (ctx) or (), got {len(parameters)} parameters "
                f"({', '.join(p.name for p in parameters)})",
                where=where,
            )
    return annotation, (takes_input, takes_ctx)


def make_handler(
    fn: Callable[..., Any],
    name: str | None,
    options: Mapping[str, Any],
    make: Callable[..., Handler] | None = None,
    **more: Any,
) -> Handler:
    """Build a handler from the options of a decorator or a config; `make` and `more` are of another kind of handler."""
    code = getattr(fn, "__code__", None)
    file, line = (code.co_filename, code.co_firstlineno) if code is not None else ("", 0)
    where = f"{file}:{line}"
    try:
        read = HandlerOptions.read(options)
        retry = RetryPolicy.parse(read.retry)
        return (make or Handler)(
            name=_name_of(fn) if name is None else name,
            fn=fn,
            queue=read.queue,
            retry=retry,
            timeout_ms=read.timeout,
            priority=read.priority or 0,
            delay_ms=read.delay or 0,
            concurrency=read.concurrency,
            max_active=read.max_active,
            call_concurrency=read.call_concurrency,
            rate=read_rate_limit(read.rate_limit, read.rate_key),
            rate_key=read_key_of_input(read.rate_key, "rate_key"),
            order_key=read_key_of_input(read.order_key, "order_key"),
            dead_letters=read.dead_letters and retry.on_fail == "dlq",
            dead_letter_queue=read.dead_letter_queue,
            keep_completed=read_keep(read.keep_completed, "keep_completed"),
            keep_failed=read_keep(read.keep_failed, "keep_failed"),
            key=read_key(read.key),
            input_schema=read.input_schema,
            unknown_fields=read.unknown_fields,
            output_schema=read.output_schema,
            wait=read_await(read.wait),
            runner=None if read.runner == "inprocess" else read.runner,
            file=file,
            line=line,
            **more,
        )
    except DefinitionError as problem:
        raise problem if problem.where else DefinitionError(str(problem), where=where) from None
    except (ValueError, BadId) as problem:
        raise DefinitionError(str(problem), where=where) from None


def _name_of(fn: Callable[..., Any]) -> str:
    name = getattr(fn, "__name__", None)
    if not isinstance(name, str):
        raise DefinitionError(f"{fn!r} has no __name__; pass a function, or set name=…")
    return name


@dataclass(frozen=True)
class JobDefinition:
    """A plain job on one queue. With `any_name` it handles jobs of every name on its queue."""

    handler: Handler
    any_name: bool = False
    schedule: DeclaredSchedule | None = None
