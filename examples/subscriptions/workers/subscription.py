"""A subscription: trial, active, overdue, cancelled, expired. Messages move it, from BullMQ or from Kafka."""

import os

from penstock.entities import States, Transition, entity


def note_payment(subscription: dict, payload: dict) -> None:
    subscription["paid"] = subscription.get("paid", 0) + payload["amount"]
    subscription["reminders"] = 0


def count_reminder(subscription: dict) -> None:
    subscription["reminders"] = subscription.get("reminders", 0) + 1


def has_reminders_left(subscription: dict) -> bool:
    return subscription.get("reminders", 0) < 2


# One setting: MESSAGING is "bullmq" or "kafka". Without it, events come only from `penstock entities emit`.
MESSAGING = os.environ.get("MESSAGING", "")
MESSAGES = {
    "events": [
        {"queue": "billing", "jobName": "payment-succeeded", "event": "paid"},
        {"queue": "billing", "jobName": "payment-failed", "event": "unpaid"},
        {"queue": "billing", "jobName": "subscription-cancelled", "event": "cancelled"},
    ],
    "bullmq": {"enabled": MESSAGING == "bullmq", "url": os.environ.get("QUEUES_URL", "redis://localhost:6379/0")},
    "kafka": {
        "enabled": MESSAGING == "kafka",
        "brokers": os.environ.get("BROKERS", "localhost:9092"),
        "clientId": "subscriptions",
    },
    "deadLetterQueue": {"enabled": True},
}


@entity("subscription")
class Subscription:
    messaging = MESSAGES
    states = States("trial", idles=["trial", "active", "overdue"], finals=["cancelled", "expired"])
    transitions = (
        Transition("paid", ["trial", "active", "overdue"], "active", actions=[note_payment]),
        Transition("unpaid", ["trial", "active"], "overdue", actions=[count_reminder]),
        Transition("unpaid", "overdue", "overdue", conditions=[has_reminders_left], actions=[count_reminder]),
        Transition("unpaid", "overdue", "expired"),
        Transition("cancelled", ["trial", "active", "overdue"], "cancelled"),
    )
