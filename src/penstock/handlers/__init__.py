"""Handlers: functions decorated with `@flow`, `@step` or `@job`, their options, discovery and the registry."""
