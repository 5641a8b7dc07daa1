"""Penstock beside other engines: the same work, on the same disk, in the same minutes."""
