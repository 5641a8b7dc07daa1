"""What alert rules find in the store: one condition for each queue, error group or schedule that breaks a rule."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from ..core.clock import to_iso
from ..core.durations import format_ms
from ..core.ids import digest
from ..ports.monitoring import MINUTE_MS, MinuteCounts
from .alert_rules import FAILURE_RATE, MISSED_SLOT, NEW_ERROR_GROUP, NO_WORKER, OLDEST_AGE, AlertRule
from .live_workers import LiveWorkers

if TYPE_CHECKING:
    from .app import App

DLQ = "-dlq"


class Condition(msgspec.Struct, frozen=True):
    """A rule that is broken, and by what."""

    rule: str
    subject: str  # a queue or a schedule
    summary: str
    detail: str = ""  # tells conditions of one subject apart

    @property
    def id(self) -> str:
        """The same as long as it lasts."""
        return digest(f"{self.rule} {self.subject} {self.detail}".encode())


async def find_conditions(app: App, rules: Sequence[AlertRule], since: int) -> list[Condition]:
    """Return the conditions that hold now. Error groups that existed before `since` are not new."""
    checks = {
        FAILURE_RATE: _check_failures,
        OLDEST_AGE: _check_ages,
        NO_WORKER: _check_workers,
        MISSED_SLOT: _check_slots,
    }
    found: list[Condition] = []
    for rule in rules:
        conditions = _check_groups(app, rule, since) if rule.kind == NEW_ERROR_GROUP else checks[rule.kind](app, rule)
        found += [condition async for condition in conditions]
    return found


async def _check_failures(app: App, rule: AlertRule) -> AsyncIterator[Condition]:
    now = app.clock.now_ms()
    first = (now - rule.over_ms) // MINUTE_MS * MINUTE_MS
    by_queue: dict[str, list[MinuteCounts]] = {}
    for minute in await app.store.rates(rule.on, first):
        by_queue.setdefault(minute.queue, []).append(minute)
    for queue, minutes in sorted(by_queue.items()):
        failed, completed = sum(one.failed for one in minutes), sum(one.completed for one in minutes)
        ended = failed + completed
        if ended >= max(rule.min_jobs, 1) and failed / ended > rule.rate:
            share = f"{failed / ended:.0%}"
            text = f"queue {queue}: {failed} of {ended} jobs failed in {format_ms(rule.over_ms)} ({share})"
            yield Condition(rule.rule, queue, text)


async def _check_ages(app: App, rule: AlertRule) -> AsyncIterator[Condition]:
    for queue in await app.queues.list():
        if rule.concerns(queue.name) and not queue.name.endswith(DLQ) and queue.age_ms > rule.limit_ms:
            text = f"queue {queue.name}: the next job has waited {format_ms(queue.age_ms)}"
            yield Condition(rule.rule, queue.name, f"{text}; {queue.counts['waiting']} waiting")


async def _check_workers(app: App, rule: AlertRule) -> AsyncIterator[Condition]:
    live = await LiveWorkers.read(app)
    for queue in await app.queues.list():
        is_waiting = queue.counts["waiting"] and queue.age_ms > rule.limit_ms and not queue.name.endswith(DLQ)
        if rule.concerns(queue.name) and is_waiting and not live.serve(queue.name):
            jobs = "1 job waits" if queue.counts["waiting"] == 1 else f"{queue.counts['waiting']} jobs wait"
            text = f"queue {queue.name}: {jobs}, and {live.advise(queue.name)}"
            yield Condition(rule.rule, queue.name, text)


async def _check_groups(app: App, rule: AlertRule, since: int) -> AsyncIterator[Condition]:
    for letters in await app.dead_letters.queues():
        queue = letters.removesuffix(DLQ)
        if not (rule.concerns(queue) or rule.concerns(letters)):
            continue
        for group in await app.store.error_groups(letters):
            if group.first > since:
                letters_text = f"{group.count} dead letter{'s' * (group.count != 1)}"
                text = f"queue {queue}: a new error, {letters_text} (`penstock dlq show {group.sample}`)"
                yield Condition(rule.rule, queue, text, group.group)


async def _check_slots(app: App, rule: AlertRule) -> AsyncIterator[Condition]:
    now = app.clock.now_ms()
    for row in await app.store.schedules():
        if row.paused or row.next is None or now - row.next <= rule.limit_ms or not rule.concerns(row.id):
            continue
        if not await app._schedule_service.is_held(row, now):
            late = format_ms(now - row.next)
            text = f"schedule {row.id}: its slot {to_iso(row.next)} is {late} late; look for a worker with its flow"
            yield Condition(rule.rule, row.id, text)
