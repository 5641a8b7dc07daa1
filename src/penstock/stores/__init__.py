"""Stores: one folder each, with the same file names. Stores do not import each other."""
