"""Let pytest rewrite the asserts of the contracts, so that failures show values as in test files.

Import it before the contracts: pytest cannot rewrite a module that is already imported.
"""

from pathlib import Path

import pytest

_HERE = Path(__file__)
pytest.register_assert_rewrite(
    *(f"{__package__}.{file.stem}" for file in _HERE.parent.glob("*.py") if file.stem not in ("__init__", _HERE.stem))
)
