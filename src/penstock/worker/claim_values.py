"""The large values of a claim: what the store keeps of them is a reference into the blob store."""

from __future__ import annotations

import msgspec

from ..core.errors import BlobStoreMissing
from ..core.payload import lift_limits_here
from ..core.references import KEY, MARK, REFERENCES, find_references
from ..ports.blobs import LoadsClaims
from ..ports.store import Store
from ..ports.unit import Claim


class ClaimValues:
    """Loads the values of claims."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._loader = store if isinstance(store, LoadsClaims) else None

    async def load(self, claim: Claim) -> Claim:
        """Return the claim with its large values. Raise StoreUnavailable if they cannot be loaded here, or now."""
        has_mark = MARK in claim.payload
        if has_mark and not await self._is_recorded(claim.payload):
            why = f"its data has the key {KEY!r}, which is reserved for references to large values; rename the key"
            return msgspec.structs.replace(claim, payload=b"null", unreadable=claim.unreadable or why)
        if self._loader is not None:
            if self._loader.lifts_limits:
                lift_limits_here()
            return await self._loader.load_claim(claim)
        if has_mark or (claim.memos and any(MARK in value for value in claim.memos.values())):
            raise BlobStoreMissing(
                f"job {claim.job!r} has a value in the blob store, and this worker has none; set blob_url as in the "
                "other processes"
            )
        return claim

    async def _is_recorded(self, data: bytes) -> bool:
        """Return whether Penstock wrote the references: another producer of a shared queue can write any data."""
        names = find_references(data)
        rows = [await self._store.states(f"{REFERENCES}{name}/", limit=1) for name in names]
        return bool(rows) and all(rows)
