"""`DagBuilder`: a dag in Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..core.durations import Duration
from ..core.retry import RetryOption
from ..handlers.options import RateOption
from .definition import Dag, read_dag


class DagBuilder:
    """Builds a dag in Python.

        expenses = DagBuilder("expenses")
        check = expenses.add("check", "policy.check")
        expenses.add("pay", "bank.pay", after=check)
        await app.dags.register(expenses.build())

    Args:
        id: Its name: `app.dags.start(id)`.
        name: A title for people.
        priority: Of its jobs; lower runs first.
        delay: Start its first nodes this much later.
        triggers: What starts its runs: `{"schedule": "0 8 * * *"}`, `{"webhook": "expenses"}`, `{"event": "a.b"}`.
        max_concurrency: Maximum number of nodes of one run that are queued or running at the same time.
    """

    def __init__(
        self,
        id: str,
        *,
        name: str = "",
        priority: int = 0,
        delay: Duration | None = None,
        triggers: Sequence[Mapping[str, Any]] = (),
        max_concurrency: int | None = None,
    ) -> None:
        self._fields: dict[str, Any] = {"id": id, "name": name, "priority": priority, "delay": delay}
        self._fields["maxConcurrency"] = max_concurrency
        self._fields["triggers"] = list(triggers)
        self._nodes: list[dict[str, Any]] = []

    def add(
        self,
        id: str,
        type: str,
        *,
        after: str | Sequence[str] = (),
        config: Any = None,
        continue_on_fail: bool = False,
        retry: RetryOption | None = None,
        timeout: Duration | None = None,
        delay: Duration | None = None,
        rate_limit: RateOption | None = None,
    ) -> str:
        """Add a node, and return its id.

        Args:
            id: Its name in the dag.
            type: The type of its executor.
            after: The node or the nodes that it follows.
            config: What its executor receives as `config`; its strings may contain expressions.
            continue_on_fail: Pass its final failure on as data instead of failing the run.
            retry: Number of attempts or a policy, instead of the executor's.
            timeout: Fail an attempt that runs longer than this, instead of the executor's timeout.
            delay: Start it this much later.
            rate_limit: Maximum number of its attempts per duration, in all runs and workers: `"10/1m"`.
        """
        inputs = [after] if isinstance(after, str) else list(after) if isinstance(after, Sequence) else after
        options = {"config": config, "retry": retry, "timeout": timeout, "delay": delay}
        options["rateLimit"] = rate_limit
        given = {key: value for key, value in options.items() if value is not None}
        self._nodes.append({"id": id, "type": type, "inputs": inputs, "continueOnFail": continue_on_fail, **given})
        return id

    def build(self) -> Dag:
        """Return the dag. Raise DagInvalid with every mistake."""
        given = {key: value for key, value in self._fields.items() if value is not None}
        return read_dag({**given, "nodes": self._nodes})
