"""Messaging as data: which events come from which queues, by BullMQ or by Kafka. One setting switches between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from ..core.errors import ConfigError
from ..core.near_match import did_you_mean
from ..core.retry import Backoff, RetryPolicy
from ..core.text import shorten
from ..ports.bridge import Bridge
from .failures import DEFAULT_RETRY, DeadLetters
from .targets import ANY_NAME, Target, Targets


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Refuses unknown fields."""


class MessageEvent(_Strict, frozen=True):
    """One event: where its messages come from. `queue` and `topic` are two names of the same."""

    event: str
    queue: str | None = None
    topic: str | None = None
    job_name: str | None = None


class JobBackoff(_Strict, frozen=True):
    type: str = "exponential"
    delay: int = 30_000


class JobDefaults(_Strict, frozen=True):
    attempts: int = 3
    backoff: JobBackoff = JobBackoff()
    remove_on_complete: bool | int = 1000
    remove_on_fail: bool | int = 5000


class RedisConnection(_Strict, frozen=True):
    host: str = "localhost"
    port: int = 6379
    username: str | None = None
    password: str | None = None
    db: int = 0
    tls: bool | dict[str, Any] = False

    @property
    def url(self) -> str:
        login = f"{quote(self.username or '', '')}:{quote(self.password, '')}@" if self.password else ""
        scheme = "redis" if self.tls is False else "rediss"
        ca = self.tls.get("ca") if isinstance(self.tls, dict) else None
        return f"{scheme}://{login}{self.host}:{self.port}/{self.db}{f'?ca={quote(ca)}' if ca else ''}"


class BullMQSettings(_Strict, frozen=True):
    enabled: bool = True
    url: str | None = None
    connection: RedisConnection | None = None
    prefix: str | None = None
    events: list[MessageEvent] = []
    default_job_options: JobDefaults | None = None
    dead_letter_queue: DeadLetters | None = None
    limiter: dict[str, int] | str | None = None
    config: BullMQSettings | None = None  # the same settings, one level down


class KafkaSettings(_Strict, frozen=True):
    brokers: str | list[str]
    enabled: bool = True
    client_id: str = "penstock"
    group: str | None = None
    sasl: dict[str, str] | None = None
    tls: bool | dict[str, str] = False
    events: list[MessageEvent] = []
    default_job_options: JobDefaults | None = None
    dead_letter_queue: DeadLetters | None = None


Side = BullMQSettings | KafkaSettings


class Messaging(_Strict, frozen=True):
    """What `read_messaging` reads."""

    events: list[MessageEvent] = []
    bullmq: BullMQSettings | None = None
    kafka: KafkaSettings | None = None
    default_job_options: JobDefaults = JobDefaults()
    dead_letter_queue: DeadLetters = DeadLetters()
    concurrency: int | None = None


def read_messaging(definition: Mapping[str, Any], targets: Mapping[str, Target]) -> list[Bridge]:
    """Return the bridge that a definition enables, as a list for `bridges=`; an empty one if it enables none.

    Args:
        definition: `events` (each with `queue` or `topic`, `event` and perhaps `jobName`), and `bullmq` or `kafka` with
            `enabled`; `defaultJobOptions`, `deadLetterQueue` and `concurrency` apply to both. Each of the two may have
            its own `events`, `defaultJobOptions` and `deadLetterQueue` instead.
        targets: What each event does: a target or a function by the name of the event.
    """
    found = _read(definition)
    side = _choose_side(found)
    if side is None:
        return []
    events = [*found.events, *side.events]
    options: dict[str, Any] = {
        "retry": _retry(side.default_job_options or found.default_job_options),
        "dead_letters": side.dead_letter_queue or found.dead_letter_queue,
        "consume": group_events(events, targets),
    }
    if found.concurrency is not None:
        options["concurrency"] = found.concurrency
    if isinstance(side, KafkaSettings):
        return [_make_kafka(side, options)]
    return [_make_bullmq(side, side.default_job_options or found.default_job_options, options)]


def list_places(definition: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the address and the name of each queue that a definition consumes."""
    found = _read(definition)
    side = _choose_side(found)
    if side is None:
        return []
    where = str(side.brokers) if isinstance(side, KafkaSettings) else str((side.url, side.connection, side.prefix))
    return list(dict.fromkeys((where, one.queue or one.topic or "") for one in (*found.events, *side.events)))


def _read(definition: Mapping[str, Any]) -> Messaging:
    try:
        return msgspec.convert(definition, Messaging)
    except msgspec.ValidationError as problem:
        raise ConfigError(f"invalid messaging: {problem}") from None


def _choose_side(found: Messaging) -> Side | None:
    """Return the settings of the system that is enabled. Both is an error: every message would be expected twice."""
    has_bullmq = found.bullmq is not None and found.bullmq.enabled
    has_kafka = found.kafka is not None and found.kafka.enabled
    if has_bullmq and has_kafka:
        raise ConfigError(
            "messaging enables both bullmq and kafka: every message would be expected twice; set enabled to false "
            "for one of them"
        )
    if has_kafka:
        return found.kafka
    if not has_bullmq or found.bullmq is None:
        return None
    return found.bullmq.config or found.bullmq


def group_events(events: Sequence[MessageEvent], targets: Mapping[str, Target]) -> dict[str, Targets]:
    """Return the targets of each queue by the names of its messages. Two events of one queue need two names."""
    queues: dict[str, dict[str, Target]] = {}
    for one in events:
        queue = one.queue or one.topic
        if not queue or (one.queue and one.topic):
            raise ConfigError(f"event {one.event!r} requires either a queue or a topic")
        if one.event not in targets:
            known = f"known events: {', '.join(sorted(targets)) or 'none'}"
            raise ConfigError(f"no target for event {one.event!r}; {did_you_mean(one.event, targets) or known}")
        names, name = queues.setdefault(queue, {}), one.job_name or ANY_NAME
        if name in names:
            what = f"jobName {name!r}" if one.job_name else "no jobName"
            raise ConfigError(f"queue {queue!r} has two events with {what}; give each its own jobName")
        names[name] = targets[one.event]
    return dict(queues)


def _retry(defaults: JobDefaults) -> RetryPolicy:
    if defaults.backoff.type not in ("exponential", "fixed"):
        raise ConfigError(f'backoff.type must be "exponential" or "fixed", got {shorten(defaults.backoff.type)}')
    kind: Any = defaults.backoff.type
    backoff = Backoff(kind, defaults.backoff.delay, DEFAULT_RETRY.backoff.max_delay_ms, jitter=False)
    return RetryPolicy.parse(RetryPolicy(defaults.attempts, backoff))


def _make_bullmq(settings: BullMQSettings, defaults: JobDefaults, options: dict[str, Any]) -> Bridge:
    from .bullmq import BullMQ

    if settings.url is not None and settings.connection is not None:
        raise ConfigError("bullmq requires either a url or a connection, got both")
    url = settings.connection.url if settings.connection is not None else settings.url
    keep: dict[str, Any] = {
        "keep_completed": _keep(defaults.remove_on_complete),
        "keep_failed": _keep(defaults.remove_on_fail),
    }
    return BullMQ(url, prefix=settings.prefix, limiter=settings.limiter, **keep, **options)


def _make_kafka(settings: KafkaSettings, options: dict[str, Any]) -> Bridge:
    from .kafka import Kafka

    return Kafka(
        settings.brokers, client_id=settings.client_id, group=settings.group, sasl=settings.sasl, tls=settings.tls,
        **options,
    )  # fmt: skip


def _keep(remove: bool | int) -> bool | int:
    """Return how many jobs to keep: BullMQ's options say which to remove."""
    return not remove if isinstance(remove, bool) else remove
