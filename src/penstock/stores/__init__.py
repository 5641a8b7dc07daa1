"""Backends: one folder each, the same file names in each. Stores do not know each other."""
