"""Collection without garbage collection: 15,000 tests are many objects, none of which is garbage.

Each process of the tests spends a third of its collection on looking for garbage, and looks at all of these objects again in
every full garbage collection later. Frozen objects are not looked at.
"""

from __future__ import annotations

import gc

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> object:
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
