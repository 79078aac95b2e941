"""Slow, literal oracles and the paper's printed numbers, for tests to compare with."""
