"""`penstock init`."""

from __future__ import annotations

from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from .errors import UsageMistake
from .options import USUAL_PLACE, Common
from .output import print_json

TEMPLATE = "template"


def init(dir: str = ".", /, *, common: Common = USUAL_PLACE) -> int:
    """Make a project to start from: a small flow and a job, a test of both, a settings file and a README.

    Nothing that is there is overwritten.

    Parameters
    ----------
    dir
        The folder; made if it is not there.
    """
    root = Path(dir)
    files = _files(resources.files(__package__).joinpath(TEMPLATE))
    there = [name for name in files if (root / name).exists()]
    if there:
        raise UsageMistake(f"{root / there[0]} is there already, and nothing is overwritten: give another folder")
    _write(root, files)
    if common.json:
        print_json({"dir": str(root), "files": list(files)})
        return 0
    print("\n".join([f"Made a project in {root.resolve()}:", *(f"  {name}" for name in files)]))
    go = "" if dir == "." else f"cd {dir} && "
    print(f'Next: {go}penstock run welcome --input \'{{"name": "Ada"}}\', then penstock dev.')
    return 0


def _files(folder: Traversable, above: str = "") -> dict[str, bytes]:
    """The files of the template by their path; `.txt` is only there so that nobody takes them for code of ours."""
    found: dict[str, bytes] = {}
    for item in sorted(folder.iterdir(), key=lambda item: item.name):
        if item.is_dir():
            found |= _files(item, f"{above}{item.name}/")
        else:
            found[f"{above}{item.name.removesuffix('.txt')}"] = item.read_bytes()
    return found


def _write(root: Path, files: dict[str, bytes]) -> None:
    try:
        for name, content in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:  # someone else may have made it meanwhile
                file.write(content)
    except OSError as problem:
        raise UsageMistake(f"cannot write {problem.filename or root}: {problem.strerror}") from None
