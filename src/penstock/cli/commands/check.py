"""`penstock check`: checks open runs against the current code."""

from __future__ import annotations

import asyncio
import sys
from contextlib import redirect_stdout
from typing import Annotated

import msgspec
from cyclopts import Parameter

from ...app.dag_files import DagFileProblem, check_dag_files
from ...app.preflight import PreflightReport
from ...core.text import pluralize
from ...settings import Settings
from ..errors import warn
from ..options import COMMON_DEFAULTS, CommonOptions
from ..output import print_json, print_text
from ..session import build_code_app, check_dir, refuse_memory_store


def check(
    *,
    flow: Annotated[str | None, Parameter(help="Only runs of this flow.")] = None,
    accept: Annotated[
        list[str] | None,
        Parameter(negative="", help="Name of a new call that open runs may make now; may be repeated."),
    ] = None,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Check definitions of dags, and open runs against the current code, before a deploy.

    Re-executes each open step with its recorded results, up to its first call
    that has none. Reports recorded calls that are no longer made, new calls
    before recorded ones, and calls in another order. Nothing is written or
    emitted, and functions passed to ctx.run are not called, but handler code
    outside ctx.run runs. Exits with 1 if a run does not fit, if a worker file
    is not loaded, or if a file *.dag.json or *.dag.yaml beside the worker files
    has a mistake. Without a store it checks the files alone.
    """
    refuse_memory_store(common)
    warn("Warning: this re-executes handlers up to their last recorded call. Code outside ctx.run runs again.")
    with redirect_stdout(sys.stderr):  # handlers may print
        dags, checked = asyncio.run(_check(common, flow, accept or []))
    for problem in dags:
        warn(f"{'Warning' if problem.is_warning else 'Error'}: {problem}")
    _print(checked, dags, common.json)
    return 0 if checked.is_ok and all(one.is_warning for one in dags) else 1


async def _check(
    common: CommonOptions, flow: str | None, accept: list[str]
) -> tuple[list[DagFileProblem], PreflightReport]:
    check_dir(Settings.load({"dir": common.dir}).dir)  # without code every run would break
    async with build_code_app(common) as app:
        return await check_dag_files(app), await app.runs.preflight(flow, accept=accept)


def _print(checked: PreflightReport, dags: list[DagFileProblem], json: bool) -> None:
    if json:
        problems = [{**msgspec.to_builtins(one), "breaks": one.is_breaking} for one in checked.problems]
        is_ok = checked.is_ok and all(one.is_warning for one in dags)
        shown = {"ok": is_ok, "runs": checked.runs, "steps": checked.steps, "problems": problems}
        shown["files"] = checked.files
        print_json({**shown, "dags": [msgspec.to_builtins(one) for one in dags]})
        return
    for one in checked.problems:
        step = one.step if one.n == 1 else f"{one.step}#{one.n}"
        code = f"{one.code}, accepted" if one.is_accepted else one.code
        print_text(f"run {one.run}, step {step}: {one.reason} [{code}]")
    scope = f"{pluralize(checked.steps, 'open step')} of {pluralize(checked.runs, 'open run')}"
    verdict = f"{checked.broken_steps} would fail or repeat work" if checked.broken else "all can continue"
    print_text(f"Checked {scope}: {verdict} with this code.")
    if checked.files:
        print_text(f"{pluralize(len(checked.files), 'problem')} with worker files: their runs cannot continue.")
