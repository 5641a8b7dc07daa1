"""A handler: a function and how it is to be run. Shared by plain jobs and flow steps."""

from __future__ import annotations

import difflib
import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from ..core.durations import to_ms
from ..core.errors import DefinitionError
from ..core.ids import BadId, check_name, digest
from ..core.payload import plain
from ..core.priority import BadPriority, check_priority
from ..core.retry import RetryPolicy
from ..ports.unit import Keep, RateLimit
from .await_config import Await, read_await
from .context import Context
from .fingerprint import fingerprint
from .keeping import read_keep
from .schemas import Check, checker, wants_checking
from .sync_context import SyncContext

if TYPE_CHECKING:
    from .scheduled import CodeSchedule

IdempotencyKey = Literal["auto"] | Callable[[Any], str]
Rate = RateLimit | str | Mapping[str, Any]
RateKey = str | Callable[[Any], str]
MARK = "__penstock__"


@dataclass(frozen=True)
class Handler:
    """A function with its operational settings."""

    name: str
    fn: Callable[..., Any]
    queue: str | None = None  # None: discovery names it after the file
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    timeout_ms: int | None = None
    priority: int = 0
    delay_ms: int = 0
    concurrency: int | None = None
    max_active: int | None = None
    rate: RateLimit | None = None
    rate_key: RateKey | None = None
    dead_letters: bool = True
    dead_letter_queue: str | None = None
    keep_completed: Keep | None = None
    keep_failed: Keep | None = None
    idempotency_key: IdempotencyKey | None = None
    input_schema: Any = None
    output_schema: Any = None
    wait: Await | None = None
    file: str = ""
    line: int = 0

    def __post_init__(self) -> None:
        check_name(self.name, "name")
        if self.queue is not None:
            check_name(self.queue, "queue name")
        if inspect.isgeneratorfunction(self.fn) or inspect.isasyncgenfunction(self.fn) or isinstance(self.fn, type):
            kind = "a class" if isinstance(self.fn, type) else "a generator"
            raise DefinitionError(f"{self.name} is {kind}: a handler is a function with a result", where=self.where)
        parameters = list(inspect.signature(self.fn).parameters.values())
        annotation, passes = _shape(self.fn, parameters, self.where)
        schema = self.input_schema if self.input_schema is not None else annotation
        checks = (
            checker(schema, f"the input of {self.name}") if schema is not None else None,
            checker(self.output_schema, f"the result of {self.name}") if self.output_schema is not None else None,
        )
        object.__setattr__(self, "is_async", inspect.iscoroutinefunction(self.fn))
        object.__setattr__(self, "_passes", passes)
        object.__setattr__(self, "wants_ctx", passes[1])
        object.__setattr__(self, "_checks", checks)
        object.__setattr__(self, "input_schema", schema)

    is_async: bool = field(init=False, default=False)
    wants_ctx: bool = field(init=False, default=True)
    _passes: tuple[bool, bool] = field(init=False, default=(True, True), repr=False)
    _checks: tuple[Check | None, Check | None] = field(init=False, default=(None, None), repr=False)

    @cached_property
    def code(self) -> str:
        """Which code it is: the same in every process, another after a change."""
        return fingerprint(self.fn)

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}" if self.file else getattr(self.fn, "__qualname__", self.name)

    @property
    def home(self) -> str:
        """The queue it is claimed from."""
        return self.queue or "default"

    @property
    def dlq(self) -> str:
        return self.dead_letter_queue or f"{self.home}-dlq"

    def check_input(self, value: Any) -> Any:
        check = self._checks[0]
        return value if check is None else check(value)

    @property
    def checks_output(self) -> bool:
        return self._checks[1] is not None

    def check_output(self, value: Any) -> Any:
        check = self._checks[1]
        if check is not None:
            check(value)
        return value

    def call(self, value: Any, ctx: Context | SyncContext | None) -> Any:
        """Calls the function with what its signature asks for."""
        wants_input, wants_ctx = self._passes
        if wants_input:
            return self.fn(value, ctx) if wants_ctx else self.fn(value)
        return self.fn(ctx) if wants_ctx else self.fn()

    def key_of(self, payload: Any, owner: str | None = None) -> str | None:
        """The idempotency key the definition asks for, if any; `owner` is the flow, else the queue it is unique in."""
        if self.idempotency_key is None:
            return None
        if self.idempotency_key == "auto":
            # The order of an object's keys says nothing: the same input has the same key.
            content = msgspec.json.encode([owner or self.home, self.name, plain(payload)], order="sorted")
            return f"{self.name}-{digest(content)}"
        return self.idempotency_key(payload)

    def rate_key_of(self, payload: Any) -> str | None:
        """Whose budget a job draws on: a dotted path into the payload, or a function of it."""
        if self.rate_key is None:
            return None
        if callable(self.rate_key):
            return str(self.rate_key(payload))
        value = payload
        for part in self.rate_key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return str(value)

    def on(self, queue: str) -> Handler:
        """The same handler on a queue, unless it names its own."""
        return self if self.queue is not None else replace(self, queue=queue)


def _shape(fn: Callable[..., Any], parameters: list[inspect.Parameter], where: str) -> tuple[Any, tuple[bool, bool]]:
    """What a signature asks for: the input's annotation if it is a model, and whether input and ctx are passed."""
    try:
        hints = typing.get_type_hints(fn)
    except Exception:  # a name only known to a type checker
        hints = {}
    wants_input = wants_ctx = False
    annotation: Any = None
    for parameter in parameters:
        hint = hints.get(parameter.name)
        if parameter.name in ("ctx", "context") or hint in (Context, SyncContext):
            wants_ctx = True
        elif not wants_input and not wants_ctx:
            wants_input = True
            annotation = hint if wants_checking(hint) else None
        elif parameter.default is inspect.Parameter.empty:
            raise DefinitionError(
                f"the handler takes {len(parameters)} parameters ({', '.join(p.name for p in parameters)}): "
                "write (input, ctx), (input), (ctx) or ()",
                where=where,
            )
    return annotation, (wants_input, wants_ctx)


def make_handler(fn: Callable[..., Any], name: str | None, options: Mapping[str, Any]) -> Handler:
    """A handler from decorator options."""
    code = getattr(fn, "__code__", None)
    file, line = (code.co_filename, code.co_firstlineno) if code is not None else ("", 0)
    where = f"{file}:{line}"
    try:
        retry = RetryPolicy.of(options.get("retry"))
        return Handler(
            name=name or _name_of(fn),
            fn=fn,
            queue=options.get("queue"),
            retry=retry,
            timeout_ms=_timeout(options.get("timeout")),
            priority=check_priority(options.get("priority") or 0),
            delay_ms=_duration(options.get("delay")) or 0,
            concurrency=_positive("concurrency", options.get("concurrency")),
            max_active=_positive("max_active", options.get("max_active")),
            rate=_rate(options.get("rate_limit"), options.get("rate_key")),
            rate_key=options.get("rate_key"),
            dead_letters=_flag("dead_letters", options.get("dead_letters", True)) and retry.on_fail == "dlq",
            dead_letter_queue=options.get("dead_letter_queue"),
            keep_completed=read_keep(options.get("keep_completed"), "keep_completed"),
            keep_failed=read_keep(options.get("keep_failed"), "keep_failed"),
            idempotency_key=options.get("idempotency_key"),
            input_schema=options.get("input_schema"),
            output_schema=options.get("output_schema"),
            wait=read_await(options.get("wait")),
            file=file,
            line=line,
        )
    except DefinitionError as problem:
        raise problem if problem.where else DefinitionError(str(problem), where=where) from None
    except (ValueError, BadId, BadPriority) as problem:
        raise DefinitionError(str(problem), where=where) from None


def _duration(value: Any) -> int | None:
    return None if value is None else to_ms(value)


def _timeout(value: Any) -> int | None:
    ms = _duration(value)
    if ms == 0:
        raise DefinitionError("timeout=0 would end every attempt at once: leave it out for none")
    return ms


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise DefinitionError(f"{name}={value!r}: give True or False")
    return value


def _name_of(fn: Callable[..., Any]) -> str:
    name = getattr(fn, "__name__", None)
    if not isinstance(name, str):
        raise DefinitionError(f"{fn!r} has no name of its own: give a function, or name it with name=…")
    return name


def _rate(limit: Any, key: Any) -> RateLimit | None:
    """A limit with a key is one for each key."""
    rate = read_rate(limit)
    if rate is None:
        if key is not None:
            raise DefinitionError("rate_key says whose limit it is, but there is no rate_limit: give both")
        return None
    if rate.max < 1 or rate.duration_ms < 1:
        raise DefinitionError(f"rate_limit={limit!r}: nothing could ever begin; give at least 1, and a span of time")
    if rate.per_key and key is None:
        raise DefinitionError("rate_limit is per key, but there is no rate_key: give the key's path in the payload")
    return msgspec.structs.replace(rate, per_key=key is not None)


def _positive(name: str, value: Any) -> int | None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise DefinitionError(f"{name}={value!r}: give a whole number of at least 1")
    return value


def read_rate(value: Any) -> RateLimit | None:
    """A rate limit from "100/1m", or {"max": 100, "duration": "1m", "per_key": True}, or a spec's durationMs."""
    if value is None or isinstance(value, RateLimit):
        return value
    if isinstance(value, str):
        count, slash, span = value.partition("/")
        if not slash or not count.strip().isdigit():
            raise DefinitionError(f'rate_limit={value!r}: write "100/1m", that is a count, a slash and a duration')
        span = span.strip()
        return RateLimit(int(count), to_ms(span if span[:1].isdigit() else f"1{span}"))
    if isinstance(value, Mapping):
        known = {"max", "duration", "durationMs", "duration_ms", "per_key", "perKey"}
        check_keys(value, known, "rate_limit")
        span_ms = value.get("durationMs", value.get("duration_ms"))
        if "max" in value and (span_ms is not None or "duration" in value):
            per_key = bool(value.get("per_key", value.get("perKey", False)))
            return RateLimit(
                int(value["max"]), int(span_ms) if span_ms is not None else to_ms(value["duration"]), per_key
            )
    raise DefinitionError(f'rate_limit={value!r}: write "100/1m" or {{"max": 100, "duration": "1m"}}')


def check_keys(given: Mapping[str, Any], known: set[str], what: str, where: str | None = None) -> None:
    """Refuses unknown keys and offers the nearest known one."""
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(str(key), sorted(known), 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(known))}"
            raise DefinitionError(f"{what} has the unknown key {key!r}: {hint}", where=where)


@dataclass(frozen=True)
class JobDefinition:
    """A plain job: no flow, one queue. `any_name` takes jobs of every name on its queue."""

    handler: Handler
    any_name: bool = False
    schedule: CodeSchedule | None = None
