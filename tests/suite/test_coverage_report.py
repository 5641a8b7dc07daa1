"""The report of the test coverage: totals, and every file of the commit path."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from coverage_report import COMMIT_PATH, add_up, is_commit_path, print_report, read_files, to_json  # noqa: E402


def file(covered: int, missing: list[int], functions: dict[str, int]) -> dict[str, Any]:
    summary = {
        "covered_lines": covered,
        "num_statements": covered + len(missing),
        "covered_branches": 1,
        "num_branches": 2,
    }
    regions = {name: {"summary": {"covered_lines": ran, "num_statements": 3}} for name, ran in functions.items()}
    branches = [[2, 7], [missing[0], 9]] if missing else []  # of a line that did not run, only the line is listed
    return {"summary": summary, "missing_lines": missing, "missing_branches": branches, "functions": regions}


REPORT = {
    "files": {
        "src/penstock/flows/decide.py": file(9, [4], {"": 1, "one": 2, "two": 0}),
        "src/penstock/core/ids.py": file(10, [], {"three": 3}),
        "tests/x.py": file(1, [], {}),
    }
}


def test_the_totals_of_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    files = read_files(REPORT)
    assert [one.name for one in files] == ["core/ids.py", "flows/decide.py"]
    totals = {kind: (share.covered, share.total) for kind, share in add_up(files).items()}
    assert totals == {"lines": (19, 20), "branches": (2, 4), "functions": (2, 3)}
    (path,) = to_json(files)["commitPath"]
    shares = {"lines": 90.0, "branches": 50.0}
    assert path == {"file": "flows/decide.py", **shares, "missing": [4], "missingBranches": ["2->7"]}
    print_report(files)
    assert "flows/decide.py" in capsys.readouterr().out


@pytest.mark.parametrize("pattern", COMMIT_PATH)
def test_the_commit_path_has_files(pattern: str) -> None:
    assert list((ROOT / "src" / "penstock").glob(pattern))


def test_other_files_are_not_the_commit_path() -> None:
    assert [is_commit_path(one) for one in read_files(REPORT)] == [False, True]
