"""The contract suite itself: every test of it runs, and every store must define how it is made."""

from __future__ import annotations

import inspect
import sys

import pytest

from penstock.testing import contracts
from penstock.testing.contracts import BridgeContract, RunnerContract, StoreContract, StoreUnderTest

CONTRACTS = [c for c in StoreContract.__mro__ if c.__module__.startswith("penstock.testing.contracts.")]


def test_no_contract_overrides_a_test_of_another() -> None:
    owners: dict[str, list[str]] = {}
    for contract in CONTRACTS:
        for name in vars(contract):
            if name.startswith("test_"):
                owners.setdefault(name, []).append(contract.__name__)
    assert len(owners) > 100
    assert {name: found for name, found in owners.items() if len(found) > 1} == {}


def test_the_store_contract_includes_every_contract() -> None:
    exported = {getattr(contracts, name) for name in contracts.__all__} - {
        StoreContract,
        RunnerContract,
        BridgeContract,
    }
    assert set(CONTRACTS) == exported


def test_pytest_rewrites_the_asserts_of_every_contract() -> None:
    """Failures of the contracts must show values, although their modules are not test files."""
    modules = {contract.__module__ for contract in CONTRACTS} - {StoreUnderTest.__module__}
    assert [name for name in sorted(modules) if "@pytest_ar" not in vars(sys.modules[name])] == []


def test_every_test_is_a_coroutine() -> None:
    for contract in CONTRACTS:
        for name, member in vars(contract).items():
            if name.startswith("test_"):
                assert inspect.iscoroutinefunction(member), name


def test_a_store_must_define_how_it_is_made() -> None:
    class Incomplete(StoreContract):
        pass

    with pytest.raises(TypeError, match="make_store"):
        Incomplete()  # type: ignore[abstract]
    assert StoreUnderTest.make_store.__doc__
