"""Tests marked `xdist_group` run one after another on one worker.

pytest-xdist 3.8 passes the group to its scheduler as a suffix of the test's id, by writing `item._nodeid`. pytest 9.2 no longer
reads that attribute (pytest-xdist issue 1386): the mark had no effect, and no error. Here the first worker writes the groups
into a file that the scheduler reads. `--dist loadgroup`, which pyproject.toml sets, turns it on.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

FOLDER = pytest.StashKey[Path]()  # of the controller
INPUT = "penstock_groups_file"
FIRST_WORKER = "gw0"


class GroupScheduling(LoadScopeScheduling):
    """Send each group to one worker as a whole, the largest first, and every other test to whichever worker is free."""

    def __init__(self, config: pytest.Config, log: Any, groups_file: Path) -> None:
        super().__init__(config, log)
        self._groups_file = groups_file
        self._groups: dict[str, str] | None = None

    def _split_scope(self, nodeid: str) -> str:
        if self._groups is None:  # asked only after every worker has collected
            self._groups = json.loads(self._groups_file.read_text())
        return self._groups.get(nodeid, nodeid)


def group_of(item: pytest.Item) -> str | None:
    """Return the group an item's marks name; several make one group of their own, as in pytest-xdist."""
    names = {str(mark.args[0] if mark.args else mark.kwargs["name"]) for mark in item.iter_markers("xdist_group")}
    return "_".join(sorted(names)) or None


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: WorkerController) -> None:
    node.workerinput[INPUT] = str(_groups_file(node.config))


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reports the tests to the controller
def pytest_collection_finish(session: pytest.Session) -> None:
    given: dict[str, Any] = getattr(session.config, "workerinput", {})
    if given.get("workerid") == FIRST_WORKER and INPUT in given:
        groups = {item.nodeid: group for item in session.items if (group := group_of(item))}
        target = Path(given[INPUT])
        draft = target.with_suffix(".draft")
        draft.write_text(json.dumps(groups))
        os.replace(draft, target)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling | None:
    return GroupScheduling(config, log, _groups_file(config)) if config.getvalue("dist") == "loadgroup" else None


def pytest_unconfigure(config: pytest.Config) -> None:
    if FOLDER in config.stash:
        shutil.rmtree(config.stash[FOLDER], ignore_errors=True)


def _groups_file(config: pytest.Config) -> Path:
    if FOLDER not in config.stash:
        config.stash[FOLDER] = Path(tempfile.mkdtemp(prefix="penstock-groups-"))
    return config.stash[FOLDER] / "groups.json"
