"""One tree of errors, each with its own code."""

from __future__ import annotations

import pytest

from penstock.core import errors
from penstock.core.errors import AttemptCancelled, DefinitionError, PenstockError, Retry


def tree(cls: type[PenstockError]) -> list[type[PenstockError]]:
    return [cls, *(leaf for child in cls.__subclasses__() for leaf in tree(child))]


def ours() -> list[type[PenstockError]]:
    return [cls for cls in tree(PenstockError) if cls.__module__ == errors.__name__]


def test_every_error_has_its_own_code() -> None:
    codes = [cls.code for cls in ours()]
    assert len(codes) > 25
    assert len(set(codes)) == len(codes)
    # The specs catch a timeout by the code AWAIT_TIMEOUT.
    assert all(code == code.lower() and " " not in code for code in codes if code != "AWAIT_TIMEOUT")
    assert all("code" in vars(cls) for cls in ours())


def test_the_docstring_lists_every_error() -> None:
    assert errors.__doc__ is not None
    for cls in ours():
        assert cls.__name__ in errors.__doc__, cls.__name__


def test_except_exception_does_not_catch_a_cancelled_attempt() -> None:
    assert not issubclass(AttemptCancelled, Exception)

    def handler() -> None:
        try:
            raise AttemptCancelled("lease lost")
        except Exception:
            pytest.fail("a handler's `except Exception` must not see it")

    with pytest.raises(AttemptCancelled) as stopped:
        handler()
    assert stopped.value.reason == "lease lost"


def test_a_definition_error_names_the_file() -> None:
    problem = DefinitionError("no handler", code="no_handler", where="orders/charge.py")
    assert str(problem) == "orders/charge.py: no handler"
    assert (problem.kind, problem.where) == ("no_handler", "orders/charge.py")
    assert str(DefinitionError("no handler")) == "no handler"


def test_retry_has_a_delay() -> None:
    assert Retry().after is None
    assert Retry("later", after="5s").after == "5s"
