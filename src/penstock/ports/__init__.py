"""Protocols and value types only: what the engines ask of a store, a runner and a clock."""
