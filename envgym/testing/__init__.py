"""Doubles and hand-made records for tests: of this package, and of packages built on it."""
