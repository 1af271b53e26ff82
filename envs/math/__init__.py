"""Worlds of numbers and proofs."""
