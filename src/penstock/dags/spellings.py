"""Spellings of other engines in the config of a node: read as the fields of the node that they mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_RETRY_KEYS = {"maxAttempts": "attempts"}
SUB_WORKFLOW = "sub-workflow"


def lift_config(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a node, with `config.retryPolicy` as `retry` and, of a sub-workflow, `config.continueOnFail`
    as `continueOnFail`. What the node itself has wins."""
    config = fields.get("config")
    if not isinstance(config, Mapping) or not config.keys() & {"retryPolicy", "continueOnFail"}:
        return dict(fields)
    found, rest = dict(fields), dict(config)
    if isinstance(policy := rest.get("retryPolicy"), Mapping):
        del rest["retryPolicy"]
        policy = dict(policy)
        _set(found, "continueOnFail", policy.pop("continueOnFail", None))
        _set(found, "retry", {_RETRY_KEYS.get(key, key): _read_backoff(key, value) for key, value in policy.items()})
    if fields.get("type") == SUB_WORKFLOW and "continueOnFail" in rest:
        _set(found, "continueOnFail", rest.pop("continueOnFail"))
    found["config"] = rest
    return found


def _read_backoff(key: str, value: Any) -> Any:
    """Return a backoff with its delay in milliseconds, as these engines write it."""
    if key != "backoff" or not isinstance(value, Mapping) or not isinstance(value.get("delay"), int | float):
        return value
    return {"delayMs" if name == "delay" else name: one for name, one in value.items()}


def _set(fields: dict[str, Any], key: str, value: Any) -> None:
    if value is not None:
        fields.setdefault(key, value)
