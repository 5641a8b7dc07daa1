"""A store belongs to one namespace. The first app that opens it decides, and another name is refused."""

from __future__ import annotations

from ..core.errors import NamespaceMismatch


def check_owner(owner: str | None, namespace: str, store: str, way_out: str) -> None:
    """Raise if a store belongs to another namespace; `way_out` says how this one gets a store of its own."""
    if owner is not None and owner != namespace:
        raise NamespaceMismatch(
            f"{store} belongs to namespace {owner!r}, but this app uses {namespace!r}; set PENSTOCK_NAMESPACE={owner}, "
            f"or {way_out} (Penstock fills in the name)"
        )
