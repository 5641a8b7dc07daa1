"""`@node`: the executor of a type of node in dags, and what it can return."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import msgspec

from ..core.durations import Duration
from ..core.errors import DefinitionError, NodeFailed, Permanent, Retry
from ..core.near_match import did_you_mean
from ..core.payload import to_plain
from ..core.retry import RetryOption, RetryPolicy
from ..core.schemas import Schema, UnknownFields, Validator, make_validator
from ..core.text import shorten
from ..ports.runner import Gate, NodeBinding
from .breaker_options import BreakerOption, BreakerOptions, read_breaker
from .handler import DEFINITIONS_ATTRIBUTE, Handler, make_handler
from .options import RateKeyOption, RateOption, RunnerName, check_options

F = TypeVar("F", bound=Callable[..., Any])
MARKER = "$penstock"  # the first key of a result that is more than data


class Skip(msgspec.Struct, frozen=True):
    """Return it from an executor: the node is skipped, and so is a node whose inputs were all skipped.

    Args:
        reason: Why, for people.
    """

    reason: str = ""


class Fail(msgspec.Struct, frozen=True):
    """Return it from an executor: the attempt failed, as if the executor had raised.

    Args:
        reason: What went wrong.
        retry: Whether to retry under the policy, or the delay of the next attempt, such as "30s".
    """

    reason: str
    retry: bool | Duration = True


class Next(msgspec.Struct, frozen=True):
    """Return it from an executor: of the nodes after this one, only these follow. The others are skipped, unless
    another of their inputs was not.

    Args:
        nodes: Ids of the nodes that follow.
        data: What they receive.
    """

    nodes: Sequence[str]
    data: Any = None


class NodeOutcome(msgspec.Struct, frozen=True):
    """A result, decoded: its data, the nodes that follow, or why the node is skipped."""

    data: bytes = b"null"
    chosen: tuple[str, ...] | None = None
    skipped: str | None = None


class _Marked(msgspec.Struct, rename={"kind": MARKER}, omit_defaults=True):
    """A stored result that is more than data."""

    kind: str
    reason: str = ""
    nodes: tuple[str, ...] = ()
    data: msgspec.Raw = msgspec.Raw(b"null")


_decode_marked = msgspec.json.Decoder(_Marked).decode
_PREFIX = b'{"' + MARKER.encode() + b'":'


def read_outcome(result: bytes) -> NodeOutcome:
    """Decode the result of an executor."""
    if not result.startswith(_PREFIX):
        return NodeOutcome(result)
    marked = _decode_marked(result)
    if marked.kind == "skip":
        return NodeOutcome(skipped=marked.reason)
    return NodeOutcome(bytes(marked.data), marked.nodes)


@dataclass(frozen=True)
class NodeHandler(Handler):
    """An executor with the config of one node."""

    config_schema: Any = None
    bound_parameters: ClassVar[frozenset[str]] = frozenset({"config", "skipped"})

    breaker: BreakerOptions | None = None

    config: Any = field(init=False, default=None, repr=False)
    binding: NodeBinding | None = field(init=False, default=None, repr=False)  # type: ignore[misc]
    gate: Gate | None = field(init=False, default=None, repr=False)  # type: ignore[misc]
    _check_config: Validator | None = field(init=False, default=None, repr=False)
    _roles: tuple[str, ...] = field(init=False, default=(), repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        takes_input, _ = self._passes
        roles: list[str] = []
        for name in inspect.signature(self.fn).parameters:
            if name in self.bound_parameters:
                roles.append(name)
            elif takes_input and "input" not in roles:
                roles.append("input")
            elif self.takes_ctx and "ctx" not in roles:
                roles.append("ctx")
        object.__setattr__(self, "_roles", tuple(roles))
        if self.config_schema is not None:
            check = make_validator(self.config_schema, f"the config of {self.name!r}")
            object.__setattr__(self, "_check_config", check)

    def bind(
        self,
        config: Any,
        followers: Sequence[str] = (),
        retry: RetryPolicy | None = None,
        timeout_ms: int | None = None,
        skipped: Sequence[str] = (),
    ) -> NodeHandler:
        """Return the executor for one node. A copy: the signature and the schemas are read once."""
        bound = copy.copy(self)
        object.__setattr__(bound, "config", self.check_config(config))
        object.__setattr__(bound, "binding", NodeBinding(config, tuple(followers), tuple(skipped)))
        if retry is not None:
            object.__setattr__(bound, "retry", retry)
        if timeout_ms is not None:
            object.__setattr__(bound, "timeout_ms", timeout_ms)
        return bound

    def with_gate(self, gate: Gate | None) -> NodeHandler:
        """Set what decides whether a bound executor may be called."""
        object.__setattr__(self, "gate", gate)
        return self

    def check_config(self, config: Any) -> Any:
        """Return the config, converted to its model; raise SchemaViolation if it does not match. A node without a
        config has an empty one."""
        return config if self._check_config is None else self._check_config({} if config is None else config)

    def call(self, value: Any, ctx: Any) -> Any:
        """Call the executor, and turn what it returns into a result that can be stored."""
        skipped = self.binding.skipped if self.binding is not None else ()
        arguments = {"input": value, "config": self.config, "skipped": skipped, "ctx": ctx}
        result = self.fn(*[arguments[role] for role in self._roles])
        return self._finish(result) if self.is_async else self._store_form(result)

    async def _finish(self, result: Coroutine[Any, Any, Any]) -> Any:
        return self._store_form(await result)

    def _store_form(self, result: Any) -> Any:
        if isinstance(result, Skip):
            return {MARKER: "skip", "reason": result.reason}
        if isinstance(result, Next):
            return {MARKER: "next", "nodes": self._check_followers(result.nodes), "data": result.data}
        if isinstance(result, Fail):
            raise _to_error(result)
        if isinstance(result, dict) and MARKER in result:
            raise Permanent(f"an executor cannot return a mapping with the key {MARKER!r}; it is reserved")
        return result

    def _check_followers(self, nodes: Sequence[str]) -> list[str]:
        chosen = [nodes] if isinstance(nodes, str) else list(nodes)
        followers = self.binding.followers if self.binding is not None else ()
        for id in chosen:
            if id not in followers:
                hint = did_you_mean(id, followers) or f"nodes after it: {', '.join(followers) or 'none'}"
                raise Permanent(f"Next names {shorten(id)}, which does not follow this node; {hint}")
        return chosen

    def check_output(self, value: Any) -> Any:
        """Check the data of a result; a skipped node has none."""
        if isinstance(value, dict | Skip | Next):
            plain = to_plain(value)
            if isinstance(plain, dict) and MARKER in plain:
                return value if plain[MARKER] == "skip" else super().check_output(plain["data"])
        return super().check_output(value)


@dataclass(frozen=True)
class NodeDefinition:
    """The executor of a type of node."""

    handler: NodeHandler

    @property
    def type(self) -> str:
        return self.handler.name


def _to_error(fail: Fail) -> Exception:
    if fail.retry is False:
        return Permanent(fail.reason)
    return NodeFailed(fail.reason) if fail.retry is True else Retry(fail.reason, after=fail.retry)


def make_node(
    fn: Callable[..., Any], type: str, options: Mapping[str, Any], config: Schema | None, breaker: Any
) -> NodeDefinition:
    """Build the executor of a type from the options of a decorator or a worker file."""
    handler = make_handler(fn, type, options, NodeHandler, config_schema=config)
    assert isinstance(handler, NodeHandler)
    if handler.wait is not None:
        raise DefinitionError(f"the executor {type!r} cannot declare a wait", where=handler.where)
    try:
        handler = dataclasses.replace(handler, breaker=read_breaker(breaker))
    except DefinitionError as problem:
        raise DefinitionError(str(problem), where=handler.where) from None
    if handler.queue is None and handler.rate is not None:
        handler = dataclasses.replace(handler, queue=type)  # a rate limit belongs to a queue
    return NodeDefinition(handler)


@check_options
def node(
    type: str,
    *,
    input: Schema | None = None,
    config: Schema | None = None,
    output: Schema | None = None,
    queue: str | None = None,
    retry: RetryOption | None = None,
    timeout: Duration | None = None,
    priority: int = 0,
    concurrency: int | None = None,
    max_active: int | None = None,
    call_concurrency: int | None = None,
    rate_limit: RateOption | None = None,
    rate_key: RateKeyOption | None = None,
    unknown_fields: UnknownFields | None = None,
    runner: RunnerName | None = None,
    breaker: BreakerOption | None = None,
) -> Callable[[F], F]:
    """Define the executor of a type of node in dags: a function of `input`, `config`, `skipped` and `ctx`, or of some
    of them. `skipped` has the ids of the node's inputs that were skipped; their data is None.

    It returns data, or `Skip(reason)`, `Fail(reason)` or `Next([ids], data)`.

    Args:
        type: The type that nodes name, such as "http.get".
        input: Schema of the input, a model or a JSON schema; by default the parameter's annotation.
        config: Schema of the config of its nodes.
        output: Schema of the data it returns.
        queue: The queue of its jobs; by default named after the file.
        retry: Number of attempts, or a policy: `RetryPolicy(…)` or `{"attempts": 3, "backoff": {"delay": "1s"}}`. A
            node may set its own.
        timeout: Fail an attempt that runs longer than this. A node may set its own.
        priority: Lower numbers are claimed first; 0 is first.
        concurrency: Maximum number of attempts one worker runs at the same time.
        max_active: Maximum number of attempts all workers run at the same time.
        call_concurrency: Maximum number of functions of `ctx.run` that one attempt runs at the same time. Default: the
            setting `call_concurrency`, which is 32.
        rate_limit: Maximum number of starts per duration: `"100/1m"`, or `{"max": 100, "duration": "1m"}`. It holds for
            all workers together. A type with a rate limit has a queue of its own, named like the type, unless `queue`
            is set.
        rate_key: Apply the rate limit to each value of this key: a dotted path into the input, or a function of it.
        unknown_fields: `"refuse"` or `"ignore"` fields of the input that its dataclass does not have. Default: the
            setting `unknown_fields`, which is `"refuse"`.
        runner: Where the executor runs: `"process"` for a child process of the worker, `"inprocess"` (the default) for
            the worker itself.
        breaker: Circuit breaker, shared by all workers: `{"failures": 5, "open_for": "30s", "key": "config.host"}`.
            After so many failures in a row no node of this type, or of this key, is called for that time; then one
            call probes.
    """
    options = {
        "queue": queue, "retry": retry, "timeout": timeout, "priority": priority, "concurrency": concurrency,
        "max_active": max_active, "call_concurrency": call_concurrency, "rate_limit": rate_limit, "rate_key": rate_key,
        "unknown_fields": unknown_fields, "input_schema": input, "output_schema": output, "runner": runner,
        "dead_letters": False,  # `app.dags.retry` runs a failed node again, from the run itself
    }  # fmt: skip

    def mark(fn: F) -> F:
        definition = make_node(fn, type, options, config, breaker)
        setattr(fn, DEFINITIONS_ATTRIBUTE, [*getattr(fn, DEFINITIONS_ATTRIBUTE, []), definition])
        return fn

    return mark
