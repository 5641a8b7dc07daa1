"""Sends alerts to a webhook, as Slack and the systems that understand its form take them: `{"text": …}`."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

import msgspec

from ..core.errors import Permanent, Retry

TIMEOUT_S = 10.0
_RETRIED = (408, 425, 429)


async def send_alert(webhook: str, payload: Mapping[str, Any]) -> None:
    """Send one notification. Raise Retry if the receiver may take it later, Permanent if it never will."""
    if not webhook:
        raise Retry("this worker has no setting alert_webhook; set PENSTOCK_ALERT_WEBHOOK where workers run")
    if not webhook.startswith(("https://", "http://")):
        raise Permanent("the setting alert_webhook must be the address of a webhook that starts with https://")
    body = msgspec.json.encode({"text": payload["text"]})
    status = await asyncio.to_thread(_post, webhook, body)
    if status in _RETRIED or status >= 500:
        raise Retry(f"the alert webhook answered {status}")
    if status >= 300:
        raise Permanent(f"the alert webhook answered {status}; check the address in PENSTOCK_ALERT_WEBHOOK")


def _post(webhook: str, body: bytes) -> int:
    # The address is the operator's own setting. Errors leave it out: it holds a secret.
    request = urllib.request.Request(webhook, body, {"content-type": "application/json"})  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
            return int(answer.status)
    except urllib.error.HTTPError as problem:
        problem.close()
        return problem.code
    except (OSError, ValueError) as problem:
        raise Retry(f"the alert webhook does not answer: {type(problem).__name__}") from None
